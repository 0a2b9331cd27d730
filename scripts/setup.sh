#!/usr/bin/env bash
# Makes the virtual environment that `make` uses, from pyproject.toml. Says what is missing before it downloads anything.
#   scripts/setup.sh [folder [extras]]      PYTHON=/path/to/python3.12 chooses the interpreter
set -euo pipefail

readonly venv="${1:-.venv}"
readonly extras="${2:-spark,dev}"

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

is_recent_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python)
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if is_recent_python "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "txlog needs Python 3.11 or newer; '${candidates[0]}' is $("${candidates[0]}" --version 2>/dev/null || echo missing)." \
        "Install one, or name it: make setup PYTHON=/path/to/python3.12"
}

# Prints the version of the Java that Spark will start: JAVA_HOME's, else the one on PATH.
check_java() {
    local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" banner version major
    banner="$("$java" -version 2>&1)" ||
        fail "Spark needs Java 17 or newer; '$java' does not run." \
            "Install one (a JRE will do), and set JAVA_HOME to it or put it on PATH."
    version="$(sed -n 's/.* version "\([^"]*\)".*/\1/p' <<<"$banner" | head -n 1)"
    major="${version#1.}"
    major="${major%%[!0-9]*}"
    [[ -n $major ]] || fail "Spark needs Java 17 or newer; '$java -version' printed no version: $banner"
    ((major >= 17)) ||
        fail "Spark needs Java 17 or newer; '$java' is Java $version." "Install a newer one, and set JAVA_HOME to it."
    printf '%s' "$version"
}

python="$(find_python)"
java_version="$(check_java)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module; install it (Debian and Ubuntu: apt install python3-venv)."

printf 'setup: %s with %s and Java %s; the first time this downloads Spark, a few hundred megabytes.\n' \
    "$venv" "$("$python" --version)" "$java_version"
if ! is_recent_python "$venv/bin/python"; then
    "$python" -m venv --clear "$venv"
fi
# What is never imported, most of what is installed, need not be compiled. What every process imports is, even if the shell asks
# Python to write no bytecode: each of hundreds would compile it anew, for seconds.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[$extras]"
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c 'import pandas, pyspark_txlog.datasource, txlog.cli.main'
touch "$venv/.stamp"
