"""Which kind a session or a DataFrame is of, classic or Spark Connect: asked here, once, and answered by its class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .query_plan import ClassicPlan
from .spark_session import QuerySession, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .query_plan import QueryPlan


def connect_of(owner: object) -> Any:
    """Return the module of Spark Connect if a session or a DataFrame belongs to it, and else None.

    A classic session does not need the packages that it imports.
    """
    return import_module(".connect", __package__) if is_connect(owner) else None


def session_of(spark: SparkSession | QuerySession) -> QuerySession:
    """Return the session behind the interface that both kinds of sessions share."""
    if isinstance(spark, QuerySession):
        return spark
    remote = connect_of(spark)
    if remote is not None:
        return remote.ConnectSession(spark, "")  # type: ignore[no-any-return]
    session: QuerySession = import_module(".classic", __package__).ClassicSession(spark)
    return session


def plan_of(df: DataFrame) -> QueryPlan:
    """Return the plan of a DataFrame."""
    remote = connect_of(df)
    return ClassicPlan(df) if remote is None else remote.ConnectPlan(df)
