"""Is this checkout ready for a release (`make release-check`)?

It builds the sdist, and the wheel from it. It checks the metadata of both, and that version, CHANGELOG.md, CITATION.cff
and docs/install.md agree. It installs each file into an empty virtual environment, and runs the README's first program
there, twice; the wheel also with each `--python`. Beside the files it writes what the wheel brings with it: a list of
components (SBOM) in the format CycloneDX. With `--final` the version must have its date, and the checkout must have no
changes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
NAME = "pyspark_txlog"
OF_DEVELOPERS = {"bench", "dev", "docs", "test"}
"""Extras that no user needs."""
TODAY = "**Today: from a clone.**"
"""How docs/install.md begins the paragraph that the first release changes."""


@dataclass(frozen=True, slots=True)
class Dist:
    """A wheel, and the sdist that it was built from."""

    wheel: Path
    sdist: Path

    @property
    def info(self) -> str:
        """The name of the wheel's folder of metadata."""
        return "-".join(self.wheel.name.split("-")[:2]) + ".dist-info"

    def read(self, name: str) -> str:
        """Return a file of the wheel's metadata."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(f"{self.info}/{name}").decode()

    @property
    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    @property
    def sdist_names(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers()}

    @property
    def sdist_metadata(self) -> str:
        with tarfile.open(self.sdist) as archive:
            file = archive.extractfile(f"{self.sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert file is not None
            return file.read().decode()


def build(out: Path) -> Dist:
    """Build the wheel from the sdist, so that a file that the sdist lacks is noticed. Raises RuntimeError."""
    for old in out.glob(f"{NAME}-*"):
        old.unlink()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Dist(wheel, sdist)


def version_of(source: str) -> str:
    """Return the version in the text of txlog/_version.py."""
    found: str = re.findall(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)[0]
    return found


def first_program(readme: str) -> tuple[str, str]:
    """Return the first Python program of a page that needs no Spark, and what it prints."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    at = [language == "python" and "pyspark_txlog" not in code for language, code in blocks].index(True)
    return blocks[at][1], blocks[at + 1][1]


def disagreements(version: str, changelog: str, citation: str, install: str, *, final: bool) -> Iterator[str]:
    """Yield what the release files say differently. The arguments are their texts."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"version {version}: expected MAJOR.MINOR.PATCH"
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", changelog, re.MULTILINE)
    if not sections:
        yield "CHANGELOG.md: expected a section `## [Unreleased]` or `## [MAJOR.MINOR.PATCH] - YYYY-MM-DD`"
        return
    newest, date = sections[0]
    cited = yaml.safe_load(citation)
    if str(cited.get("version")) != version:
        yield f"CITATION.cff: expected version {version}, found {cited.get('version')}"
    cited_date = str(cited["date-released"]) if "date-released" in cited else ""
    if newest == "Unreleased":
        if final:
            yield f"CHANGELOG.md: expected `## [{version}] - YYYY-MM-DD` first, found [Unreleased]"
        if cited_date:
            yield f"CITATION.cff: date-released is {cited_date}, but {version} is not released in CHANGELOG.md"
    else:
        if newest != version:
            yield f"CHANGELOG.md: expected [{version}] first, found [{newest}]"
        if not date or cited_date != date:
            yield f"CITATION.cff: expected date-released {date or 'as in CHANGELOG.md'}, found {cited_date or 'none'}"
    is_released = any(name != "Unreleased" for name, _ in sections)
    if is_released == (TODAY in install):
        where = "after" if is_released else "before"
        yield f"docs/install.md: its paragraph {TODAY} is wrong {where} the first release"


CITATION_KEYS = {
    *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords"),
    *("license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact"),
    *("repository-code", "title", "type", "url", "version"),
}
"""The keys of the Citation File Format 1.2.0."""


def citation_problems(citation: str) -> Iterator[str]:
    """Yield what breaks the Citation File Format 1.2.0: keys, required values, and the types of those used here."""
    cited = yaml.safe_load(citation)
    if unknown := set(cited) - CITATION_KEYS:
        yield f"unknown keys {sorted(unknown)}"
    if missing := {"cff-version", "message", "title", "authors"} - set(cited):
        yield f"missing keys {sorted(missing)}"
        return
    if cited["cff-version"] != "1.2.0":
        yield f"cff-version: expected 1.2.0, found {cited['cff-version']!r}"
    for key in ("message", "title", "abstract", "license", "version"):
        if key in cited and not (isinstance(cited[key], str) and cited[key].strip()):
            yield f"{key}: expected text, found {cited[key]!r}"
    if cited.get("type", "software") not in ("software", "dataset"):
        yield f"type: expected software or dataset, found {cited['type']!r}"
    if "date-released" in cited and not isinstance(cited["date-released"], datetime.date):
        yield f"date-released: expected YYYY-MM-DD, found {cited['date-released']!r}"
    people = {"family-names", "given-names", "name-particle", "name-suffix", "alias", "affiliation", "orcid"}
    for author in cited["authors"] or [{}]:
        known = people if "name" not in author else {"name", "alias"}
        if not author or set(author) - known - {"email", "website"}:
            yield f"authors: expected a person or an entity with a name, found {author!r}"
    keywords = cited.get("keywords", ["-"])
    if not keywords or len(set(keywords)) < len(keywords) or not all(isinstance(word, str) for word in keywords):
        yield f"keywords: expected different texts, found {keywords!r}"


def metadata_problems(text: str, version: str) -> Iterator[str]:
    """Yield what breaks the rules of package metadata, or what a reader of a package index would miss."""
    try:
        metadata = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from (str(error) for error in group.exceptions)
        return
    if (metadata.name, str(metadata.version)) != ("pyspark-txlog", version):
        yield f"expected pyspark-txlog {version}, found {metadata.name} {metadata.version}"
    for name in ("summary", "description", "requires_python", "license_expression", "classifiers", "keywords"):
        if not getattr(metadata, name):
            yield f"{name} is empty"
    if metadata.description_content_type != "text/markdown":
        yield f"expected a description in text/markdown, found {metadata.description_content_type}"
    for requirement in metadata.requires_dist or []:
        if requirement.url:
            yield f"{requirement}: a package index refuses dependencies by URL"
        elif not _has_floor(requirement):
            yield f"{requirement}: expected a lowest version"


def _has_floor(requirement: Requirement) -> bool:
    return requirement.name == "pyspark-txlog" or any(each.operator == ">=" for each in requirement.specifier)


def run_installed(
    file: Path, version: str, program: str, printed: str, folder: Path, python: str = sys.executable
) -> Iterator[str]:
    """Install a file into an empty environment in `folder`, and yield what goes wrong when the program runs there."""
    venv, work = folder / "venv", folder / "work"
    work.mkdir()
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    install = [
        str(venv / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        str(file),
    ]
    # What the caller's shell has on its paths must not help.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TXLOG", "VIRTUAL"))
    }
    commands = [
        ("installation", install, None),
        ("txlog --version", [str(venv / "bin" / "txlog"), "--version"], f"txlog {version}"),
        ("the README's first program", [str(venv / "bin" / "python"), "-I", "-c", program], printed.strip()),
        ("the same program again", [str(venv / "bin" / "python"), "-I", "-c", program], ""),
    ]
    for what, command, expected in commands:
        done = subprocess.run(command, check=False, cwd=work, env=environment, capture_output=True, text=True)
        found = done.stdout.strip()
        if done.returncode:
            yield f"{file.name}: {what} failed:\n{done.stdout}{done.stderr}"
            return
        if expected is not None and found != expected:
            yield f"{file.name}: {what} printed\n{found}\n  expected\n{expected}"
            return
        print(f"{file.name}, {python}: {what}: {'done' if expected is None else 'prints what is expected'}")


def write_components(dist: Dist, version: str) -> Path:
    """Write what an environment with the wheel and all its extras for users has, as CycloneDX. Return the file."""
    made = dist.wheel.parent / f"{NAME}-{version}.cdx.json"
    extras = sorted(set(Metadata.from_email(dist.read("METADATA")).provides_extra or ()) - OF_DEVELOPERS)
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"{dist.wheel}[{','.join(extras)}]"], check=True)
        options = ["--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(made)]
        subprocess.run([sys.executable, "-m", "cyclonedx_py", "environment", *options, str(python)], check=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="the version is about to be tagged")
    say = "another interpreter, for the wheel; may be repeated"
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help=say)
    arguments = parser.parse_args()
    final = arguments.final
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff", "docs/install.md")
    }
    version = version_of((ROOT / "txlog" / "_version.py").read_text(encoding="utf-8"))
    problems = [*disagreements(version, *texts.values(), final=final)]
    problems += [f"CITATION.cff: {problem}" for problem in citation_problems(texts["CITATION.cff"])]
    if final and (
        changed := subprocess.run(
            ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    ):
        problems.append(f"the checkout has changes:\n{changed}")
    print(
        f"version, CHANGELOG.md, CITATION.cff and docs/install.md: {'see below' if problems else f'agree on {version}'}"
    )
    dist = build(ROOT / "dist")
    program = first_program((ROOT / "README.md").read_text(encoding="utf-8"))
    for file, metadata in ((dist.wheel, dist.read("METADATA")), (dist.sdist, dist.sdist_metadata)):
        found = [f"{file.name}: {problem}" for problem in metadata_problems(metadata, version)]
        print(f"{file.name}: {file.stat().st_size:,} bytes, metadata {'see below' if found else 'valid'}")
        problems += found
        for python in (sys.executable, *(arguments.python if file == dist.wheel else ())):
            with tempfile.TemporaryDirectory() as folder:
                problems += run_installed(file, version, *program, Path(folder), python)
    components = write_components(dist, version)
    print(f"{components.name}: {len(json.loads(components.read_text())['components'])} components")
    for problem in problems:
        print(f"release-check: {problem}", file=sys.stderr)
    print("not ready" if problems else f"{version} is ready{'' if final else ', except for its date'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
