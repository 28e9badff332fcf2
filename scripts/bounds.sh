#!/usr/bin/env bash
# Installs what pyproject.toml allows at its bounds (VERSIONS=lowest-direct, or highest), and runs the tests that meet the packages.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=${VERSIONS:-lowest-direct}
venv=.cache/$versions
extras=kafka,postgres,mariadb,s3,rocksdb,duckdb,http,redis,prometheus,opentelemetry,openlineage,ui,spark,testing
python=${PYTHON:-python3}
command -v uv >/dev/null || { "$python" -m venv .cache/uv && .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check uv; }
PATH=$PATH:.cache/uv/bin

uv venv --quiet --clear --python "$(command -v "$python")" "$venv"
uv pip install --quiet --python "$venv/bin/python" --resolution "$versions" ".[$extras]"
uv pip install --quiet --python "$venv/bin/python" pytest hypothesis pytest-randomly pytest-timeout pytest-xdist
uv pip list --quiet --python "$venv/bin/python"
exec "$venv/bin/python" -m pytest -q -m "not slow and not nightly" --numprocesses "${WORKERS:-4}" --dist loadfile \
  tests/test_accepted_types.py tests/test_core_stores.py tests/test_engine_aggregate.py tests/test_engine_projection.py \
  tests/test_engine_state.py tests/test_file_sink.py tests/test_file_source.py tests/test_http_sink.py tests/test_kafka_admin.py \
  tests/test_kafka_pool.py tests/test_kafka_settings.py tests/test_kafka_sink.py tests/test_operate.py tests/test_redis_sink.py \
  tests/test_sql_conformance.py tests/test_sql_sqlite.py tests/test_ui.py \
  -W default::DeprecationWarning "$@"
