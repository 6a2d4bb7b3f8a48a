"""Fleet's MachineID and MachineMetadata in hwqueue's grammar: both need node facts only."""

from tests.cases.model import Case, Translated, node_id, node_spec

NODE_FACTS = frozenset({"machine_id", "machine_metadata"})


def translate(case: Case) -> Translated:
    """Machine ids become node ids; values of one metadata key are alternatives, keys are ANDed."""
    options = case.lease.get("fleet") or {}
    require = [
        {"label": key, "op": "in", "values": list(values)}
        for key, values in (options.get("machine_metadata") or {}).items()
    ]
    if options.get("machine_id"):
        require.append({"node": str(node_id(options["machine_id"]))})
    nodes = {
        node["name"]: (
            node_id(node.get("machine_id", node["name"])),
            node_spec(node, node.get("labels", {})),
        )
        for node in case.nodes
    }
    return Translated(nodes, {"require": require, "prefer": []})
