"""What may pass is tried again, with capped waits; a create knows its own lost answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from ckptflow.errors import AlreadyExists, ConfigError, TierFull, TierUnavailable
from ckptflow.testing.conformance import TierConformance
from ckptflow.testing.faults import FaultyTier
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.retrying import RetryingTier
from ckptflow.tiers.tier import Tier


class Time:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now_s, self.waits = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_s += wait_s


class LossyTier(FaultyTier):
    """Fails some calls before and some after they were done, as a network does."""

    def __init__(self, inner: Tier, seed: int) -> None:
        self._rng, self._in_a_row = random.Random(seed), 0
        super().__init__(inner, self._maybe)

    def _maybe(self, operation: str, key: str) -> None:
        self._in_a_row = self._in_a_row + 1 if self._rng.random() < 0.4 else 0
        if 0 < self._in_a_row < 5:
            raise TierUnavailable(f"{operation} {key!r} did not get through.")
        self._in_a_row = 0

    def put(self, key: str, parts) -> None:
        super().put(key, parts)
        self._maybe("put", key)

    def create(self, key: str, value) -> None:
        super().create(key, value)
        self._maybe("create", key)

    def delete(self, key: str) -> None:
        super().delete(key)
        self._maybe("delete", key)

    def iter_keys(self, prefix: str) -> Iterator[str]:
        for key in super().iter_keys(prefix):
            self._maybe("iter_keys", prefix)
            yield key


def retrying(inner: Tier, time: Time | None = None, **settings: float) -> RetryingTier:
    time = time or Time()
    return RetryingTier(
        inner, clock_s=time, sleep=time.sleep, uniform=random.Random(1).uniform, **settings
    )


class TestRetryingTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return retrying(MemoryTier())


class TestOverALossyTier(TierConformance):
    """The suite has calls in threads: tries, not seconds, are what limits them."""

    @pytest.fixture(params=range(8))
    def tier(self, request: pytest.FixtureRequest) -> Tier:
        return retrying(LossyTier(MemoryTier(), request.param), tries_max=400, deadline_s=1e9)


@pytest.mark.slow
class TestUnderManySeeds(TestOverALossyTier):
    @pytest.fixture(params=range(8, 20))
    def tier(self, request: pytest.FixtureRequest) -> Tier:
        return retrying(LossyTier(MemoryTier(), request.param), tries_max=400, deadline_s=1e9)


def always(error: Exception) -> FaultyTier:
    def fail(_operation: str, _key: str) -> None:
        raise error

    return FaultyTier(MemoryTier(), fail)


@pytest.mark.parametrize(
    "use",
    [
        lambda tier: tier.put("k", [b"x"]),
        lambda tier: tier.create("k", b"x"),
        lambda tier: tier.get("k"),
        lambda tier: tier.read_into("k", bytearray(1)),
        lambda tier: tier.size("k"),
        lambda tier: list(tier.iter_keys("")),
        lambda tier: list(tier.iter_folders("")),
        lambda tier: tier.last_keys("", 1),
        lambda tier: tier.delete("k"),
    ],
)
def test_it_gives_up_and_says_how_often_it_tried(use: Callable[[RetryingTier], object]) -> None:
    time = Time()
    with pytest.raises(TierUnavailable, match="asleep") as caught:
        use(retrying(always(TierUnavailable("asleep")), time, tries_max=5))
    assert len(time.waits) == 4
    assert "tried 5 times" in caught.value.__notes__[0]


def test_waits_grow_and_are_capped() -> None:
    time = Time()
    tier = RetryingTier(
        always(TierUnavailable("asleep")),
        tries_max=9,
        first_wait_s=0.5,
        wait_max_s=4.0,
        deadline_s=100.0,
        clock_s=time,
        sleep=time.sleep,
        uniform=lambda _low, high: high,
    )
    with pytest.raises(TierUnavailable, match="asleep"):
        tier.get("k")
    assert time.waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]


def test_no_try_begins_after_the_deadline() -> None:
    time = Time()
    tier = retrying(always(TierUnavailable("asleep")), time, tries_max=10_000, deadline_s=30.0)
    with pytest.raises(TierUnavailable, match="asleep"):
        tier.get("k")
    assert 20.0 < time.now_s <= 30.0


@pytest.mark.parametrize("error", [TierFull("full"), ConfigError("wrong"), OSError("odd")])
def test_what_will_not_pass_is_not_tried_again(error: Exception) -> None:
    time = Time()
    with pytest.raises(type(error), match=str(error)):
        retrying(always(error), time).put("k", [b"x"])
    assert time.waits == []


class LosesAnswers(FaultyTier):
    """Does the first ``count`` creates, and fails to say so."""

    def __init__(self, inner: Tier, count: int) -> None:
        super().__init__(inner, lambda _operation, _key: None)
        self._left = count

    def create(self, key: str, value) -> None:
        try:
            super().create(key, value)
        finally:
            if self._left:
                self._left -= 1
                raise TierUnavailable("the answer was lost")


@pytest.mark.parametrize("lost", [1, 2, 4])
def test_a_create_whose_answer_was_lost_has_won(lost: int) -> None:
    inner = MemoryTier()
    retrying(LosesAnswers(inner, lost)).create("claim", b"mine")
    assert inner.get("claim") == b"mine"


def test_a_create_that_was_in_doubt_may_have_lost() -> None:
    """Its first try did not come through, and another caller was faster."""
    inner = MemoryTier()

    class Beaten(FaultyTier):
        def create(self, key: str, value) -> None:
            if key not in inner.iter_keys(""):
                inner.create(key, b"theirs")
                raise TierUnavailable("cut")
            super().create(key, value)

    with pytest.raises(AlreadyExists, match="claim"):
        retrying(Beaten(inner, lambda _operation, _key: None)).create("claim", b"mine")


def test_equal_bytes_are_no_proof_without_a_doubt() -> None:
    tier = retrying(MemoryTier())
    tier.create("claim", b"same")
    with pytest.raises(AlreadyExists, match="claim"):
        tier.create("claim", b"same")


@pytest.mark.parametrize("seed", range(40))
def test_one_of_many_wins_though_answers_are_lost(seed: int) -> None:
    inner, winners = MemoryTier(), []
    for number in range(8):
        tier = retrying(LossyTier(inner, 100 * seed + number), tries_max=100, deadline_s=1e9)
        try:
            tier.create("claim", b"%d" % number)
        except AlreadyExists:
            continue
        winners.append(b"%d" % number)
    assert winners == [inner.get("claim")]


def test_senseless_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="not 0 times"):
        RetryingTier(MemoryTier(), tries_max=0)
    with pytest.raises(ConfigError, match="-1 s"):
        RetryingTier(MemoryTier(), wait_max_s=-1)
