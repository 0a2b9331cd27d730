"""Writes conf/txlog.toml from the table of settings in txlog/config.py (`make conf`)."""

from __future__ import annotations

from pathlib import Path

from txlog.config import render_toml

TARGET = Path(__file__).with_name("txlog.toml")

if __name__ == "__main__":
    TARGET.write_text(render_toml(), encoding="utf-8")
