"""What onceward knows of Redis and Valkey beyond its sink; imported by every command, so without redis-py."""

from __future__ import annotations

from onceward.core.contract.connector import Connector


class RedisConnector(Connector):
    """A server of Redis or Valkey."""

    name = "redis"
    sink = "onceward.connectors.redis.sink:RedisSink"
    address_form = "URL"
    place_form = "KEY"
    extra = "redis"
    implementation = "onceward.connectors.redis.redis_system:RedisSystem"
