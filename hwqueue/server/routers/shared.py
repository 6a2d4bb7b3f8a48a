"""What routes have in common: who may call them, and what they say of what is not there."""

from typing import Annotated, Any

from fastapi import Depends

from hwqueue.server.dependencies import Caller, RequireScope
from hwqueue.server.roles import Scope

# Of all tenants at once.
Reader = Annotated[Caller, Depends(RequireScope(Scope.READ))]
Operator = Annotated[Caller, Depends(RequireScope(Scope.OPERATE))]
Admin = Annotated[Caller, Depends(RequireScope(Scope.ADMINISTER))]
Matcher = Annotated[Caller, Depends(RequireScope(Scope.MATCH))]
# An explanation names what other tenants run.
Explainer = Annotated[Caller, Depends(RequireScope(Scope.LEASES_READ))]

# Of one tenant, where the caller has but one.
LeaseReader = Annotated[Caller, Depends(RequireScope(Scope.LEASES_READ, tenants=True))]
LeaseWriter = Annotated[Caller, Depends(RequireScope(Scope.LEASES_WRITE, tenants=True))]
LeaseOperator = Annotated[Caller, Depends(RequireScope(Scope.OPERATE, tenants=True))]

Responses = dict[int | str, dict[str, Any]]
NO_LEASE: Responses = {404: {"description": "No such lease."}}
NO_QUEUE: Responses = {404: {"description": "No such queue."}}
NO_NODE: Responses = {404: {"description": "No such node."}}
NO_WEBHOOK: Responses = {404: {"description": "No such webhook."}}
NO_CLASS: Responses = {404: {"description": "No such class."}}
WRONG_STATE: Responses = {409: {"description": "Not in its state."}}
