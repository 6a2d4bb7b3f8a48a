"""A second opinion on placement, written from the design's documents alone.

It imports nothing from `hwqueue` and runs no SQL of its own but plain reads of tables: what it is
given are placement documents and node facts, as a user writes them. Where it and the SQL functions
disagree, one of them misreads the grammar, and a test fails.

    facts        a node and a claim, as data
    values       equality, numbers and containment of JSON values
    versions     version ranges: go-version's rules and SemVer's order
    expressions  the grammar's EXPR over one node; what is malformed
    affinity     the preference score
    capacity     what fits on a node, and whether running claims overcommit one
    cluster      leases and where they run, as data; domains; what a selector selects
    taints       taints and tolerations
    occupancy    toward, away and its symmetry, preferences about leases; may_run and broken_now
    spread       max_skew, max_per_domain, percent targets
    workflows    how steps of runs end, by their leases and parents; what a retry runs again
    tables       nodes and claims as the database holds them
"""
