#!/usr/bin/env bash
# Builds stand-ins for the official Kafka, PostgreSQL, MariaDB and Spark images from Debian packages, for machines that can reach
# Debian's archive but no image registry. They take the same environment variables as far as our tests use them.
# Needs root, mmdebstrap and a Docker engine. Arguments: the folder with Kafka's jars, and that of pyspark.
set -euo pipefail
cd "$(dirname "$0")"

jars=$1
pyspark=$2
suite=bookworm
base=onceward-test/base:$suite-3
kafka=onceward-test/kafka:4.3.1
postgres=onceward-test/postgres:15
mariadb=onceward-test/mariadb:10.11
spark=onceward-test/spark:standalone

build_base() {
  # The packages come from the archives that this machine's apt uses, if it is a Debian of the same release.
  local sources=()
  if grep -qs "VERSION_CODENAME=$suite" /etc/os-release; then
    cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null >"$scratch/sources" || true
    if [[ -s $scratch/sources ]]; then sources=("$scratch/sources"); fi
  fi
  mmdebstrap --variant=minbase \
    --include=openjdk-17-jre-headless,postgresql-15,mariadb-server-core,mariadb-client-core,ca-certificates,python3,procps \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/lib/*/libLLVM*' \
    --dpkgopt=force-unsafe-io \
    --essential-hook='mkdir -p "$1/usr/share/man/man1" "$1/usr/share/man/man7" "$1/etc/postgresql-common"' \
    --essential-hook='echo create_main_cluster = false >"$1/etc/postgresql-common/createcluster.conf"' \
    $suite "$scratch/root.tar" "${sources[@]}" >"$scratch/log" 2>&1 || { tail -n 40 "$scratch/log" >&2; exit 1; }
  docker import --change 'ENV LANG=C.UTF-8' "$scratch/root.tar" "$base" >/dev/null
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

docker image inspect "$base" >/dev/null 2>&1 || build_base

cp -r kafka "$scratch/kafka"
mkdir "$scratch/kafka/jars"
cp "$jars"/*.jar "$scratch/kafka/jars"
build() {
  # The legacy builder: the other one is a plugin that Debian does not have.
  DOCKER_BUILDKIT=0 docker build --build-arg "BASE=$base" --tag "$1" "$2" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }
}
build "$kafka" "$scratch/kafka"
build "$postgres" postgres
build "$mariadb" mariadb
mkdir -p "$scratch/spark/spark"
cp spark/Dockerfile "$scratch/spark"
cp -r "$pyspark"/{bin,jars,python} "$scratch/spark/spark"
build "$spark" "$scratch/spark"

echo "ONCEWARD_TEST_KAFKA_IMAGE=$kafka"
echo "ONCEWARD_TEST_POSTGRES_IMAGE=$postgres"
echo "ONCEWARD_TEST_MARIADB_IMAGE=$mariadb"
echo "ONCEWARD_TEST_SPARK_IMAGE=$spark"
