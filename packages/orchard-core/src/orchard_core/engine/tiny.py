"""Makes a tiny mixture-of-experts model folder on the spot, in the standard Hugging Face form.

The folder holds a randomly initialised Qwen3-MoE model, a byte-level BPE tokenizer trained on the
caller's corpus and a tool-calling chat template. It serves quick tests and demonstrations: every
part of the training path sees the same kind of folder as it would for a large model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from orchard_core.engine.loading import quiet
from orchard_core.errors import MissingExtraError

try:
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as error:
    raise MissingExtraError("torch or transformers", "train") from error

BASH_SCAFFOLD = ('\n{"name": "bash", "arguments": {"command": "', '"}}\n')
"""The JSON around a bash call's command: one token each, so that a call costs few tokens."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# GPT-2's word pattern, except that digits, signs and the words that Python's operators and constants are
# written with stand alone, without the space before them: a line number can then be copied digit
# by digit, and `<=` or `and` is the same token in an expression and between quotes.
WORD_PATTERN = (
    r" ?(?!(?:True|False|None|and|or|not|in|is)\b)[\p{L}_]+"
    r"|(?:True|False|None|and|or|not|in|is)\b"
    r"|\p{N}"
    r"|(?:<=|>=|==|!=|//|\*\*|->|&&|\|\||\+=|-=|\(\):|\(\)|\):)"
    r"|[^\s\p{L}\p{N}_]"
    r"|\s+(?!\S)"
    r"|\s+"
)

CHAT_TEMPLATE = r"""
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if system or tools %}
    {{- '<|im_start|>system\n' + system }}
    {%- if tools %}
        {{- '\n\n# Tools' if system else '# Tools' }}
        {%- for tool in tools %}
            {{- '\n- ' + tool.function.name + '(' }}
            {{- (tool.function.parameters.properties | list | join(', ')) if tool.function.parameters }}
            {{- ')' }}
            {{- ': ' + tool.function.description if tool.function.description }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if message.content or not loop.first }}
            {{- '<tool_call>\n{"name": ' + (call.function.name | tojson) }}
            {{- ', "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt }}
"""


def make_tiny_model(
    folder: Path | str,
    corpus: Iterable[str],
    *,
    vocab_size: int = 1536,
    hidden: int = 192,
    layers: int = 4,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 32,
    experts: int = 8,
    experts_per_token: int = 2,
    moe_intermediate: int = 192,
    max_context: int = 8192,
    tie_word_embeddings: bool = True,
    scaffolds: Sequence[str] = BASH_SCAFFOLD,
    seed: int = 0,
) -> Path:
    """Write the model folder and return its path; same arguments, same bytes.

    `vocab_size` is an upper bound: a small corpus yields fewer merges, and the model's vocabulary is
    the tokenizer's. `scaffolds` are strings that become one token each.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus, vocab_size=vocab_size, scaffolds=scaffolds)
    tokenizer.model_max_length = max_context
    tokenizer.save_pretrained(folder)
    config_class: Any = Qwen3MoeConfig  # its signature is generated, unknown to type checkers
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=moe_intermediate * experts_per_token,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        num_experts=experts,
        num_experts_per_tok=experts_per_token,
        moe_intermediate_size=moe_intermediate,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        max_position_embeddings=max_context,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3MoeForCausalLM(config)
    with quiet():
        model.save_pretrained(folder)
    return folder


def train_tokenizer(
    corpus: Iterable[str], *, vocab_size: int, scaffolds: Sequence[str] = BASH_SCAFFOLD
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the chat template; deterministic in the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [*MARKUP_TOKENS, *scaffolds]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(added),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(corpus, _role_texts()), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    wrap: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrap(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE.strip(),
        clean_up_tokenization_spaces=False,
    )
    return wrapped


def _role_texts() -> Iterator[str]:
    """Enough of the template's own words that each role becomes a single token."""
    for _ in range(1000):
        yield "system\nuser\nassistant\n# Tools\n"
