"""What requests and answers look like, for checks and for the OpenAPI document.

Rules that go over several fields, such as the grammar of placements, are the database's alone.
"""
