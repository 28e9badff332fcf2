#!/usr/bin/env bash
# Makes $VENV with the packages of requirements.lock, but the pyspark of spark-3.5.lock, and this checkout in it.
# Does nothing if that was done for these files already.
set -euo pipefail
cd "$(dirname "$0")/.."

merged=$(mktemp)
trap 'rm -f "$merged"' EXIT
# An entry of the lock begins with a name in the first column, and its hashes and comments are indented.
awk '/^[^ #]/ { other = /^pyspark==/ } !other' requirements.lock >"$merged"
cat scripts/spark-3.5.lock >>"$merged"
LOCK=$merged scripts/setup.sh
