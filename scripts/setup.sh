#!/usr/bin/env bash
# Makes the virtual environment with exactly the packages of requirements.lock ($LOCK, if set), and this checkout in it.
# Does nothing if that was done for this lock and pyproject.toml already. Takes uv if there is one, else pip; pip decides in the end,
# because uv does not read pip's configuration.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
python=${PYTHON:-python3}
lock=${LOCK:-requirements.lock}
stamp=$venv/installed.lock

if cat "$lock" pyproject.toml | cmp --silent - "$stamp" && [[ -x $venv/bin/onceward ]]; then
  exit 0
fi

echo "setting up $venv (once for each requirements.lock and pyproject.toml; pyspark alone is some 400 MB)"
"$python" -m venv "$venv"
installed=no
if command -v uv >/dev/null; then
  uv pip install --quiet --python "$venv/bin/python" --require-hashes -r "$lock" && installed=yes
fi
if [[ $installed == no ]]; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
cat "$lock" pyproject.toml >"$stamp"
echo "done: $venv/bin/onceward"
