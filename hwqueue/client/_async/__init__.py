"""The source of both clients: `make sync` writes `hwqueue/client/_sync` from this folder."""
