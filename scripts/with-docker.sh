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
if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null || ! command -v ip >/dev/null; then
  command -v apt-get >/dev/null || fail "no Docker engine is installed"
  echo "installing a Docker engine"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends docker.io iptables iproute2 >/dev/null
fi

state=$(mktemp -d)
engine=
# A bridge and addresses of its own: on Docker's usual ones, an engine of somebody else, or containers that outlived theirs,
# would have the same addresses as ours, and take our connections.
bridge=once$$
network=
for number in $(shuf --input-range 64-191); do  # 10.64 to 10.191: the first to which this machine has no route yet
  if [[ -z $(ip route show root "10.$number.0.0/16"; ip route show match "10.$number.0.0/16" | grep -v ^default) ]]; then
    network=10.$number
    break
  fi
done
[[ -n $network ]] || fail "this machine has routes to all of 10.64.0.0 to 10.191.0.0: no addresses are left for containers"
stop() {
  local containers
  if [[ -n $engine ]]; then
    # First, since containers that do not end in time would outlive their engine.
    containers=$(timeout 20 docker ps --quiet) && [[ -z $containers ]] ||
      timeout 60 xargs docker rm --force --volumes <<<"$containers" >/dev/null 2>&1 || true
    timeout 20 docker network prune --force >/dev/null 2>&1 || true
    if kill -TERM "$engine" 2>/dev/null; then wait "$engine" || true; fi
  fi
  ip link delete "$bridge" 2>/dev/null || true
  rm -rf "$state"
}
trap stop EXIT

ip link add "$bridge" type bridge || fail "cannot make a network bridge for the Docker engine"
ip address add "$network.0.1/24" dev "$bridge"
ip link set "$bridge" up
export DOCKER_HOST=unix://$state/docker.sock
dockerd --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/pid" --host "$DOCKER_HOST" \
  --bridge "$bridge" --default-address-pool "base=$network.128.0/17,size=24" >"$state/log" 2>&1 &
engine=$!
for _ in {1..300}; do
  docker info >/dev/null 2>&1 && break
  kill -0 "$engine" 2>/dev/null || fail "the Docker engine ended: $(tail -n 20 "$state/log")"
  sleep 0.2
done
docker info >/dev/null 2>&1 || fail "the Docker engine does not answer: $(tail -n 20 "$state/log")"

"$@" || {
  status=$?
  echo "the containers, and the end of the engine's log:"
  docker ps --all --format '{{.Status}}: {{.Image}} {{.Ports}}' | head -n 20 || true
  tail -n 10 "$state/log" | cut -c 1-200
  exit "$status"
}
