"""Faults of files, disks, processes, command lines and numbers, each a function of a seed.

A fault returns `verdict.OK`, or what went wrong. `test_faults.py` runs a few seeds of each, and
`campaign.py` as many as fit into an hour.
"""
