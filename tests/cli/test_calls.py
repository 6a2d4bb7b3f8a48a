"""Each command makes one call of the client, with what stands on its line."""

import json
import re
import shlex
from uuid import uuid4

import pytest

from hwqueue.client import Client
from tests.e2e.conftest import Cli
from tests.faces import Things, flat, note_calls

pytestmark = pytest.mark.thorough
# Below each line the call that it makes, and what this is given beside the ids in braces.
CALLS = """
queue create a/b --policy '{"max_attempts": 3}'
  create_queue {"queue": "a/b", "policy": {"max_attempts": 3}}
queue pause {queue}
  pause_queue {}
queue resume {queue}
  resume_queue {}
queue policy {queue} '{"max_attempts": 3}'
  set_queue_policy {"policy": {"max_attempts": 3}}
queue purge {queue} --yes
  change_page delete {}
queue drop {queue} --force
  drop_queue {"force": true}
task set {task} '{"max_attempts": 1}'
  set_task {"defaults": {"max_attempts": 1}}
lease spawn {queue} draw --params 7 --placement '{"spread": []}' --tags zone=west --label a=b --key k
  spawn_lease {"task": "draw", "params": 7, "placement": {"spread": []}, "affinity_tags": {"zone": "west"}, \
"labels": {"a": "b"}, "idempotency_key": "k"}
lease spawn {queue} draw --delay 10m --max-run 2h --patience 30s --max-attempts 2 --tenant x --one-of {node}
  spawn_lease {"task": "draw", "params": {}, "delay": 600, "max_run": 7200, "patience": 30, \
"max_attempts": 2, "tenant": "x"}
lease spawn {queue} draw --deadline 2999-01-01T00:00:00Z --unique k --unique-for 1h --on-conflict raise
  spawn_lease {"task": "draw", "params": {}, "deadline": "2999-01-01T00:00:00Z", \
"unique": {"key": "k", "hold": 3600, "on_conflict": "raise"}}
lease spawn {queue} draw --replaces {lease} --overlap
  spawn_lease {"task": "draw", "params": {}, \
"replaces": {"lease": "{lease}", "then": "cancel", "overlap": true}}
lease list --queue {queue} --state failed --task t --label a=b --before {lease} --error Odd --key k --tenant x
  list_leases {"state": "failed", "task": "t", "labels": {"a": "b"}, "error_type": "Odd", \
"idempotency_key": "k", "tenant": "x"}
lease signal {lease} packed --payload 7 --key k
  signal_lease {"name": "packed", "payload": 7, "key": "k"}
lease cancel {lease} --reason typo
  cancel_lease {"reason": "typo"}
lease cancel --queue {queue} --task draw --reason why --yes
  change_page cancel {"task": "draw", "reason": "why"}
lease requeue {failed}
  requeue_lease {}
lease requeue --failed {queue} --task t --limit 1
  requeue_failed {"task": "t", "limit": 1}
lease requeue --queue {queue} --error Odd --yes
  change_page requeue {"state": "failed", "error_type": "Odd"}
lease delete --queue {queue} --state failed --yes
  change_page delete {"state": "failed"}
lease priority 9 --queue {queue} --yes
  change_page update {"changes": {"priority": 9}}
lease move night --queue {queue} --yes
  change_page update {"changes": {"queue": "night"}}
lease move night {lease}
  update_lease {"changes": {"queue": "night"}}
node cordon {node}
  cordon_node {}
node uncordon {node}
  uncordon_node {}
node drain {node} --deadline 10m
  drain_node {"deadline": 600}
node deregister {node}
  deregister_node {}
node untaint {node} ip:v4 --effect no_execute
  untaint_node {"key": "ip:v4", "effect": "no_execute"}
node attest {node} acme.prod --expires-at 2999-01-01T00:00:00Z --any-instance
  attest_node {"domain": "acme.prod", "expires_at": "2999-01-01T00:00:00Z", "any_instance": true}
node revoke {node} acme.prod
  revoke_attestation {"domain": "acme.prod"}
service set {other} --failure-domain label:zone
  set_service_policy {"policy": {"failure_domain": "label:zone"}}
service set {other} --away-from {node}
  set_service_policy {"policy": {"anti_affinity_services": ["{node}"]}}
service set {other} --away-from-none
  set_service_policy {"policy": {"anti_affinity_services": []}}
service show {other}
  service_policy {}
node reserve {node} film lab --stop
  set_node_tenants {"tenants": ["film", "lab"], "stop": true}
tenant set film --tier scavenger
  set_tenant {"name": "film", "changes": {"tier": "scavenger"}}
tenant set film --slots 40 --pending none --weight 0.5
  set_tenant {"name": "film", "changes": {"weight": 0.5, "slots": 40, "pending": null}}
tenant set film --spawns 600/1m
  set_tenant {"name": "film", "changes": {"spawns": {"count": 600, "per": 60}}}
tenant set film --shared-with lab --shared-with games
  set_tenant {"name": "film", "changes": {"shared_with": ["lab", "games"]}}
tenant set film --spawns none --shared-with none
  set_tenant {"name": "film", "changes": {"spawns": null, "shared_with": []}}
tenant list --after a --limit 5
  list_tenants {"after": "a", "limit": 5}
tenant show film
  list_tenants {"name": "film"}
tenant usage --limit 5
  tenant_usage {"limit": 5}
tenant preemptions --tenant film --lease {lease} --limit 5
  list_preemptions {"tenant": "film", "limit": 5}
tenant grant {login} film --right spawn --right operate
  grant_tenant {"tenant": "film", "rights": ["spawn", "operate"]}
tenant revoke {login} film
  revoke_tenant {"tenant": "film"}
tenant drop film
  drop_tenant {"name": "film"}
workflow show {workflow} --version 1
  get_workflow {"version": 1}
workflow run {workflow} --input 7 --placement '{"spread": []}' --node-label zone=west --affinity override \
--priority 3 --label a=b --tenant x --version 1 --deadline 2999-01-01T00:00:00Z
  submit_workflow {"input": 7, "placement": {"spread": []}, "affinity_tags": {"zone": "west"}, \
"affinity": "override", "priority": 3, "labels": {"a": "b"}, "tenant": "x", "version": 1, \
"deadline": "2999-01-01T00:00:00Z"}
workflow run {workflow} --run-id {other} --key k --delay 2h --app-version 2.0 --step 'a={"options": {}}'
  submit_workflow {"input": {}, "idempotency_key": "k", "available_at": 7200, "app_version": "2.0", \
"steps": {"a": {"options": {}}}}
workflow run {workflow} --unique u --on-conflict replace
  submit_workflow {"input": {}, "unique": {"key": "u", "on_conflict": "replace"}}
workflow runs --workflow w --state running --label a=b --tenant x --before {run}
  list_workflow_runs {"workflow": "w", "state": "running", "labels": {"a": "b"}, "tenant": "x"}
workflow runs --parent {run} --root {lease} --nested --since 2999-01-01T00:00:00Z
  list_workflow_runs {"is_nested": true, "submitted_from": "2999-01-01T00:00:00Z"}
workflow results {run} a --state running --after -2
  step_results {"step": "a", "state": "running", "after": -2}
workflow pause {run}
  pause_workflow_run {}
workflow resume {run}
  resume_workflow_run {}
workflow cancel {run} --reason no --yes
  cancel_workflow_run {"reason": "no"}
workflow retry {stopped} --mode all --input 7 --yes
  retry_workflow_run {"mode": "all", "input": 7}
workflow retry {stopped} --step a --yes
  retry_workflow_run {"steps": ["a"]}
workflow skip {run} a --result 7 --reason known --yes
  skip_step {"step": "a", "result": 7, "reason": "known"}
workflow signal {waits} approved --payload 7 --key k
  signal_workflow_run {"name": "approved", "payload": 7, "key": "k"}
workflow signals {waits}
  list_run_signals {}
gang spawn {queue} --member work:2 --min-size 2 --together rack --same zone --on-lost continue --hold 2m \
--gang-id {other} --priority 4 --label a=b --max-run 2h --tenant x
  spawn_gang {"members": [{"task": "work", "count": 2}], "min_size": 2, "together": ["rack"], \
"same": ["zone"], "on_lost": "continue", "hold": 120, "priority": 4, \
"labels": {"a": "b"}, "max_run": 7200, "tenant": "x"}
gang list --state waiting --before 2999-01-01T00:00:00Z --before-gang {gang}
  list_gangs {"state": "waiting", "before": "2999-01-01T00:00:00Z"}
gang cancel {gang} --reason no --yes
  cancel_gang {"reason": "no"}
everywhere spawn {queue} agent --params 7 --mode once --on-cordoned --id {other} --tags zone=west
  spawn_everywhere {"task": "agent", "params": 7, "mode": "once", "on_cordoned": true, \
"affinity_tags": {"zone": "west"}}
everywhere list --state active --before 2999-01-01T00:00:00Z
  list_everywhere {"state": "active", "before": "2999-01-01T00:00:00Z"}
everywhere show {everywhere} --after {node}
  get_everywhere {}
everywhere stop {everywhere} --running stop --yes
  stop_everywhere {"running": "stop"}
webhook add hook https://x.example/ --code lease_failed --queue {queue} --tenant x --label a=b
  set_webhook {"name": "hook", "url": "https://x.example/", "codes": ["lease_failed"], \
"queues": ["{queue}"], "tenant": "x", "labels": {"a": "b"}}
webhook pause {webhook}
  pause_webhook {}
webhook resume {webhook}
  resume_webhook {}
webhook rotate {webhook} --keep 1h
  rotate_webhook {"keep": 3600}
webhook drop {webhook}
  drop_webhook {}
"""


def test_a_command_makes_one_call(cli: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = CALLS.strip().splitlines()
    with Client(dsn, pool_size=1) as sql:
        sql.create_queue("night")
        for number, (line, made) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            sql.create_queue(f"q{number}")
            things = Things(sql, f"q{number}", other=str(uuid4()))
            if "{queue}" in line and "--yes" in line:  # for bulk calls, which need something to change
                assert things["failed"] != things["lease"]
            words = [things.said(word) for word in shlex.split(line)]
            with monkeypatch.context() as patch:
                noted = note_calls(Client, patch)
                cli(*words)
            call, _, told = made.strip().partition(" {")
            wanted = things.filled(json.loads("{" + told))
            [given, *_] = [flat(given) for name, given, _ in noted if name == call]
            ids = [things[name] for name in re.findall(r"{(\w+)}", line)]
            assert [each for each in ids if each not in json.dumps(given)] == [], line
            own = ids if "limit" in wanted else [*ids, given.get("limit")]
            assert (line, {key: each for key, each in given.items() if each not in own}) == (line, wanted)
