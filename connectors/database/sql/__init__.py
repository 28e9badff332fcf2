"""SQL databases through SQLAlchemy: prepared transactions where the database has them, else stage and merge."""
