"""Gangs and single leases on a made-up cluster, over hours of simulated time."""
