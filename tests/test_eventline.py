import pytest

from kvlogd.model import Event
from tests.lines import logged, numbers_only, parsed


def test_a_start_up_line_gives_allow_listed_numbers_only() -> None:
    text = (
        "non-default args: {'api_key': ['sk-SECRET'], 'model': '/home/ann/models/Llama-3.1 8B', "
        "'max_model_len': 4096, 'tensor_parallel_size': 2, 'seed': 77, 'disable_log_stats': True, "
        "'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector')}"
    )
    found = parsed(logged(text))
    assert isinstance(found, Event)
    assert found.numbers == {"max_model_len": 4096, "tp": 2, "disable_log_stats": 1, "kv_connector": 1}
    assert found.model == "Llama-3.1_8B"


@pytest.mark.parametrize("model", ["/", "///", "", " "])
def test_a_model_without_a_name_has_no_label(model: str) -> None:
    found = parsed(logged(f"non-default args: {{'model': '{model}'}}"))
    assert isinstance(found, Event)
    assert numbers_only(found)


@pytest.mark.parametrize(
    "text",
    [
        "GPU KV cache size: , tokens",
        "GPU KV cache size: ,,, tokens, Maximum concurrency for , tokens per request: 1.0x",
        "Maximum concurrency for , tokens per request: 6.2x",
        "SpecDecoding metrics: Draft acceptance rate: 71.4%, Mean acceptance length: 2.43, Accepted: 812 tokens, "
        "Drafted: 1137 tokens, Per-position acceptance rate: 0.8.1, ., 0..6",
        "SpecDecoding metrics: Mean acceptance length: 2.63, Accepted throughput: 76.80 tokens/s, Drafted throughput: "
        "235.49 tokens/s, Accepted: 768 tokens, Drafted: 2355 tokens, Per-position acceptance rate: ,,, , "
        "Avg Draft acceptance rate: 1.2.3%",
        "KV Transfer metrics: Num successful transfers=1.2.3, Num loads="
        + "9" * 400
        + ", Avg MB per transfer=np.float64(3.2), {'a': 1}",
    ],
)
def test_crooked_numbers_in_an_event_are_left_out(text: str) -> None:
    assert numbers_only(parsed(logged(text)))


def test_a_nan_rate_is_left_out_and_the_rest_kept() -> None:
    found = parsed(
        logged(
            "SpecDecoding metrics: Mean acceptance length: 2.63, Accepted throughput: 0.00 tokens/s, Drafted "
            "throughput: 0.00 tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: , "
            "Avg Draft acceptance rate: nan%"
        )
    )
    assert isinstance(found, Event)
    assert found.numbers["mean_len"] == 2.63
    assert "acceptance_pct" not in found.numbers
