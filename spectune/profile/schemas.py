"""The columns of a profile's tables: raw samples and counts, never ratios or fits."""

from collections.abc import Mapping

import pyarrow as pa

SCHEMA_VERSION = 5


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


TAPE = pa.schema(
    [
        _required("continuation", pa.int32()),  # its number
        _required("prompt_id", pa.string()),  # SHA-256 over label and raw messages
        _required("category", pa.string()),
        _required("temperature", pa.float64()),
        _required("end", pa.string()),  # eos, limit (the workload's) or cut (the tape's)
        pa.field("batch_rows", pa.int32()),  # texts decoded side by side with it; null where decoded elsewhere
        _required("prompt_tokens", pa.int32()),
        pa.field("prompt_nats", pa.float32()),  # surprise of the target at the prompt's last tokens, mean of each
        _required("tokens", pa.int32()),  # written
        pa.field("prompt_token_ids", pa.list_(pa.int32())),  # null in a profile without text, as are the next
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.list_(pa.float32())),  # nats, after the sampling transform; null: the target tells none
    ]
)
ACCEPTANCE = pa.schema(
    [
        _required("draft", pa.string()),  # its SPEC
        _required("continuation", pa.int32()),  # of the tape
        pa.field("draft_logprobs", pa.list_(pa.float32())),  # nats, after the sampling transform
        pa.field("argmax_hits", pa.list_(pa.bool_())),  # the draft's likeliest token is the one written
        pa.field("ranks", pa.list_(pa.int32())),  # of the token written, 1 = likeliest
        pa.field("proposed_tokens", pa.list_(pa.int16())),  # by a round that starts here
        pa.field("matched_tokens", pa.list_(pa.int16())),  # how many of them are what the target wrote
        pa.field(
            "start_ranks", pa.list_(pa.list_(pa.int16()))
        ),  # by start and depth: the token's place in a tree's growth
    ]
)
COSTS = pa.schema(
    [
        _required(
            "part", pa.string()
        ),  # cost_p, cost_p_tree, cost_q, overhead, round (whole), read_p, read_q, reference
        pa.field("draft", pa.string()),  # null where the part does not depend on it
        pa.field("temperature", pa.float64()),  # null where the part does not depend on it
        _required("engine", pa.string()),
        _required("mode", pa.string()),  # eager or graph
        pa.field("draft_steps", pa.int32()),  # of a round; null for a forward alone
        _required("tokens", pa.int32()),  # n: of a forward or a prompt, of a round those that the target verifies
        _required("batch", pa.int32()),  # sequences side by side
        _required("context_tokens", pa.int32()),  # cached in each
        _required("measurement_pass", pa.int32()),  # cells of one pass ran next to each other
        _required("seconds", pa.float64()),
    ]
)
HELD_OUT = pa.schema(
    [
        _required("prompt_id", pa.string()),  # SHA-256 over label and raw messages
        _required("category", pa.string()),
        pa.field("prompt_token_ids", pa.list_(pa.int32())),  # null in a profile without text
    ]
)
RUNS = pa.schema(
    [
        _required("run", pa.int32()),  # its number
        pa.field("draft", pa.string()),  # null for plain decoding
        _required("depth", pa.int32()),  # draft steps of a round at most; K of a chain, 0 for plain decoding
        _required("nodes", pa.int32()),  # proposals of a round at most
        _required("temperature", pa.float64()),
        _required("engine", pa.string()),
        _required("mode", pa.string()),
        _required("prompt_id", pa.string()),  # SHA-256 over label and raw messages
        _required("continuation", pa.int32()),  # of the confirmed tape: what it wrote, up to the end or the limit
    ]
)
ROUNDS = pa.schema(
    [
        _required("run", pa.int32()),
        _required("cycle", pa.int32()),  # in each of which every run takes a turn of some rounds
        _required("proposed", pa.int32()),
        _required("accepted", pa.int32()),
        _required("seconds", pa.float64()),
    ]
)
MEASURED: Mapping[str, pa.Schema] = {"tape": TAPE, "acceptance": ACCEPTANCE, "costs": COSTS, "held_out": HELD_OUT}
CONFIRMED: Mapping[str, pa.Schema] = {
    "confirmed_tape": TAPE,
    "confirmed_acceptance": ACCEPTANCE,
    "confirmed_runs": RUNS,
    "confirmed_rounds": ROUNDS,
}
