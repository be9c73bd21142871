"""A llama.cpp server started with llama-server's own options, where there is none: run by the engine's Python."""

import sys
import time

import xllamacpp

TYPES = {
    "draft-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    "ngram-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
}


def parameters(options: list[str]) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.n_ctx, params.n_parallel, params.port = 2048, 1, 0
    spec = params.speculative
    given = iter(options)
    for option in given:
        match option:
            case "--metrics":
                params.endpoint_metrics = True
            case "--model":
                params.model.path = next(given)
            case "--spec-type":
                spec.types = [TYPES[name] for name in next(given).split(",")]
            case "--spec-draft-model":
                spec.draft.mparams.path = next(given)
            case "--spec-draft-n-max":
                spec.draft.n_max = int(next(given))
            case "--spec-draft-p-min":
                spec.draft.p_min = float(next(given))
            case "--spec-ngram-simple-size-n":
                spec.ngram_simple.size_n = int(next(given))
            case "--spec-ngram-simple-size-m":
                spec.ngram_simple.size_m = int(next(given))
            case _:
                raise SystemExit(f"unknown option {option}")
    return params


if __name__ == "__main__":
    server = xllamacpp.Server(parameters(sys.argv[1:]))
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        time.sleep(1)
