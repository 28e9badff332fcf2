#!/usr/bin/env bash
# Checks the programs that must be there before anything can be set up: `prerequisites.sh python java`.
set -euo pipefail

minimum_java=17

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

need_python() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null ||
    fail "Python 3.11 or newer is needed, and there is no $python on PATH. Install it, or name one: make PYTHON=/path/to/python"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, and $python is $("$python" -V 2>&1). Name another: make PYTHON=/path/to/python"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"
}

need_java() {
  local java=java advice version
  advice="Install it, for example: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), brew install openjdk@17 (macOS)"
  if [[ -n ${JAVA_HOME:-} ]]; then java=$JAVA_HOME/bin/java; fi
  command -v "$java" >/dev/null || fail "Java $minimum_java or newer is needed, and there is no $java. $advice"
  version=$("$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1)
  [[ -n $version ]] || fail "$java does not run. $advice"
  ((version >= minimum_java)) || fail "Java $minimum_java or newer is needed, and $java is Java $version. $advice"
}

for program in "$@"; do
  "need_$program"
done
