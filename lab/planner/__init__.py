"""The planner's solvers on made-up fleets, without a database."""
