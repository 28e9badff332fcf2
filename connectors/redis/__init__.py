"""Redis and Valkey: settings, what is asked of a server, and the script by which rows and marker are one write.

Importing this package does not need redis-py; using it does (`pip install onceward[redis]`).
"""
