"""REST: look-up in a store of text, which is the user's own (`mlsd models make store`).

The original keeps 16-bit ids and takes the first hits in sorted order; here ids have 32 bits and hits are spread
evenly. On recurrent targets, which cannot hold a tree, the commonest path is proposed as a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.lookup.suffix_store import SuffixStore, build_store, read_header
from mlsd.drafters.lookup.text_lookup import TextLookup
from mlsd.drafters.method import DrafterSetup, MethodOptions, drafting_method
from mlsd.drafters.options import Range, small_model_study
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.drafters.trees import Commit, commonest_prefixes, whole_tree
from mlsd.engine.tree import Tree
from mlsd.engine.verify import Proposal
from mlsd.engine.vocabulary import vocabulary_sha256
from mlsd.errors import EngineError, InputError
from mlsd.folders import asset_path, cache_dir, given_path
from mlsd.hashes import digest
from mlsd.records import ModelRef, OptionValue

SHIPPED = "shipped"


@drafting_method(
    "rest",
    summary=(
        "REST: retrieve what followed the last few tokens in a large text, and verify the commonest continuations as a "
        "tree."
    ),
    source="He et al. 2023 (arXiv 2311.08252)",
    presets=(
        small_model_study("qwen2.5-1.5b-small", 64, span=4),
        small_model_study("smollm2-small", 64, span=3),
        small_model_study("llama-3.2-1b-small", 48, span=3),
        small_model_study("vicuna-7b-small", 64, span=16),
        small_model_study("qwen2.5-1.5b-large", 64, span=5),
        small_model_study("smollm2-large", 48, span=10),
        small_model_study("llama-3.2-1b-large", 64, span=5),
        small_model_study("vicuna-7b-large", 64, span=16),
    ),
    space={
        "gamma": Range(low=8, high=64),
        "span": Range(low=2, high=16),
        "length": Range(low=4, high=10),
    },
)
class RestOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of REST."""

    store: Annotated[
        str,
        Meta(description='a file of `mlsd models make store`, or "shipped": a small one of its prose'),
    ]
    span: Annotated[int, Meta(ge=1, le=16, description="the longest end of the text to look for")] = 16
    min_span: Annotated[int, Meta(ge=1, le=16, description="the shortest")] = 2
    length: Annotated[int, Meta(ge=1, le=16, description="tokens taken after each hit")] = 10
    hits: Annotated[int, Meta(ge=1, le=100_000, description="the most hits looked at")] = 5_000
    commit: Commit = "keep"
    content: Annotated[
        str, Meta(description="what the store holds (`mlsd models show`); filled in when the spec is resolved")
    ] = ""

    def fill_in(self) -> dict[str, OptionValue]:
        """So that another text under one name is another case. Raises: InputError."""
        return {} if self.store == SHIPPED else {"content": read_header(given_path(self.store))[0].content}

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        """Room for a tree of gamma nodes; a chain on targets that cannot hold one."""
        if opening.rollback == "trim":
            return opening.on_target(whole_tree(opening, self.commit))
        base, longest = opening.target, self.length + 1  # chains are no longer, however large gamma is
        shorter = {"max_outputs": min(base.max_outputs, longest), "n_snapshots": min(base.n_snapshots, longest)}
        return opening.on_target(msgspec.structs.replace(base, **shorter))

    def open(self, setup: DrafterSetup) -> Rest:
        path = shipped_store(setup) if self.store == SHIPPED else given_path(self.store)
        store = SuffixStore(path)
        if store.header.vocabulary_sha256 != vocabulary_sha256(setup.target.tokenizer):
            raise EngineError(
                f"{path} was built with the tokenizer of {store.header.model.id}, not with that of "
                f"{setup.target_path.name}.",
                hint=f"Build a store for this target: mlsd models make store TEXT... --target {setup.target_path} "
                "-o FILE",
            )
        if self.content not in ("", store.header.content):
            raise InputError(
                f"{path} holds {store.header.content}, not {self.content}: it was rebuilt.",
                hint="Start the measurement again; its numbers belong to another store.",
            )
        if self.span + self.length > store.header.depth:
            raise InputError(
                f"rest: span {self.span} and length {self.length} together exceed {store.header.depth}, the depth to "
                f"which {path} is sorted.",
                hint="Give a smaller span or length.",
            )
        return Rest(
            store, self, setup.clock, n_nodes=setup.opening.case.gamma, as_chain=setup.opening.rollback != "trim"
        )


def shipped_store(setup: DrafterSetup) -> Path:
    """The small store of the prose inside mlsd, built for the target's tokenizer when it is first asked for."""
    text = asset_path("prompts/long.txt")
    vocabulary = vocabulary_sha256(setup.target.tokenizer)
    recipe = f"{digest(text)} {vocabulary}"
    path = cache_dir() / "rest" / f"shipped-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.store"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        build_store((text,), setup.target_path, ModelRef(id=setup.target_path.stem), path)
    return path


class Rest(TextLookup):
    """Trees, or chains, of what is commonest in a store."""

    # Also the time of searching and of building trees, and the matched tokens in all.
    counted = (*TextLookup.counted, "search_ns", "match_search_ns", "no_match_search_ns", "tree_ns", "matched_tokens")

    def __init__(self, store: SuffixStore, options: RestOptions, clock: Clock, *, n_nodes: int, as_chain: bool) -> None:
        self._store, self._options = store, options
        self._n_nodes, self._as_chain = n_nodes, as_chain
        super().__init__(clock)

    def _forget(self) -> None:
        super()._forget()
        self._context: list[int] = []

    def _take_in(self, tokens: Sequence[int]) -> None:
        span = self._options.span
        self._context = [*self._context, *tokens[-span:]][-span:]

    def _look_up(self, k: int) -> Proposal:
        now = self._clock.now_ns
        t0 = now()
        options = self._options
        n_matched, places = self._store.find_longest(self._context, options.span, options.min_span)
        t1 = now()
        draft = Proposal()
        if n_matched:
            rows = self._store.continuations(places, n_matched, min(k, options.length), options.hits)
            tree = commonest_prefixes(rows, self._n_nodes)
            draft = (
                Proposal(tokens=_first_path(tree)) if self._as_chain else Proposal(tree=tree if tree.tokens else None)
            )
        counter = "match_search_ns" if draft.n_proposed else "no_match_search_ns"
        self._tally["search_ns"] += t1 - t0
        self._tally[counter] += t1 - t0
        self._tally["tree_ns"] += now() - t1
        self._tally["matched_tokens"] += n_matched
        return draft


def _first_path(tree: Tree) -> tuple[int, ...]:
    """The commonest child of the root, its commonest child, and so on."""
    n = 0
    while n < len(tree.tokens) and tree.parents[n] == n - 1:
        n += 1
    return tree.tokens[:n]
