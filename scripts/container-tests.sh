#!/usr/bin/env bash
# Runs the container tests, on the official images where they can be had, else on stand-ins built from Debian
# packages (as root). Needs a Docker engine: `with-docker.sh container-tests.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${VENV:-.venv}/bin/python
spark=$(sed -n 's/^pyspark==\([0-9.]*\).*/\1/p' requirements.lock)
official=(apache/kafka:4.3.1 postgres:17 mariadb:11.4 "apache/spark:$spark-python3")

can_be_had() {
  docker image inspect "$1" >/dev/null 2>&1 || timeout 300 docker pull --quiet "$1" >/dev/null 2>&1
}

have_official() {
  local image
  for image in "${official[@]}"; do
    can_be_had "$image" || return 1
  done
}

named() {
  [[ -n ${ONCEWARD_TEST_KAFKA_IMAGE:-} && -n ${ONCEWARD_TEST_POSTGRES_IMAGE:-} && -n ${ONCEWARD_TEST_MARIADB_IMAGE:-} &&
    -n ${ONCEWARD_TEST_SPARK_IMAGE:-} ]]
}

if ! named && ! have_official; then
  echo "the official images are out of reach: building stand-ins"
  if ! command -v mmdebstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends mmdebstrap >/dev/null
  fi
  jars=$("$python" -c 'from onceward.testing.services.jars import ensure_jars
from onceward.testing.services.kafka import KAFKA_LOCK
print(ensure_jars(KAFKA_LOCK))')
  pyspark=$("$python" -c 'import pyspark; print(*pyspark.__path__)')
  images=$(integration/containers/images/build.sh "$jars" "$pyspark")
  export ${images?}
  # The image of testcontainers' own cleaner is out of reach too.
  export TESTCONTAINERS_RYUK_DISABLED=true
fi
export TC_POOLING_INTERVAL=0.1

make containers
