"""HTTP: settings, the client of a process, and what an answer means.

Importing this package does not need httpx; using it does (`pip install onceward[http]`).
"""
