"""Real Kafka and PostgreSQL in the background, for development, tests and the demo; no Docker, no root."""

from .errors import DevServiceError
from .kafka import KafkaServer
from .places import cache_home, state_home
from .postgres import PostgresServer
from .service import Service
from .services import DevServices, dev_services, services_at

__all__ = [
    "DevServiceError",
    "DevServices",
    "KafkaServer",
    "PostgresServer",
    "Service",
    "cache_home",
    "dev_services",
    "services_at",
    "state_home",
]
