#!/usr/bin/env bash
# Runs a command with a Docker engine at hand: `with-docker.sh COMMAND…`. Takes the engine that answers; else, as
# root, starts one for the command (and installs it first, on Debian and Ubuntu) and stops it afterwards.
set -euo pipefail

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

if docker info >/dev/null 2>&1; then exec "$@"; fi

[[ $(id -u) == 0 ]] || fail "no Docker engine answers, and only root can start one"
if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
  command -v apt-get >/dev/null || fail "no Docker engine is installed"
  echo "installing a Docker engine"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends docker.io iptables >/dev/null
fi

state=$(mktemp -d)
engine=
stop() {
  if [[ -n $engine ]] && kill -TERM "$engine" 2>/dev/null; then wait "$engine" || true; fi
  rm -rf "$state"
}
trap stop EXIT

export DOCKER_HOST=unix://$state/docker.sock
dockerd --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/pid" --host "$DOCKER_HOST" \
  >"$state/log" 2>&1 &
engine=$!
for _ in {1..300}; do
  docker info >/dev/null 2>&1 && break
  kill -0 "$engine" 2>/dev/null || fail "the Docker engine ended: $(tail -n 20 "$state/log")"
  sleep 0.2
done
docker info >/dev/null 2>&1 || fail "the Docker engine does not answer: $(tail -n 20 "$state/log")"

"$@"
