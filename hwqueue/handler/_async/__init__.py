"""The source of what both kinds of context ask: `make sync` writes `hwqueue/handler/_sync` from here."""
