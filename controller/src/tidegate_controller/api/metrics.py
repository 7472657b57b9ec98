"""Prometheus metrics of the controller, in a registry of their own.

```text
 requests ─▶ counters by operation and status ─┐
 core, hosts, switches at the scrape ──────────┴▶ text of /metrics
```

Labels come from the OpenAPI file and the configuration, so their number is bounded.
"""

from collections import Counter
from collections.abc import Iterator

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate_controller.api.operations import Text
from tidegate_controller.api.service import Service
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import PathState
from tidegate_controller.runtime.kept import Kept

PREFIX = "tidegate_controller"
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
"""s"""


class Metrics:
    """Counts requests, and reads the rest when it is asked."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._requests = prometheus.Counter(
            f"{PREFIX}_requests",
            "Requests to the API, by operation of its OpenAPI file and status.",
            ["operation", "status"],
            registry=self.registry,
        )
        self._seconds = prometheus.Histogram(
            f"{PREFIX}_request_seconds",
            "Time until a request was answered; hosts wait for views up to a minute.",
            ["operation"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    def watch(self, service: Service, kept: Kept) -> None:
        """Reads from these, too."""
        self.registry.register(Watched(service, kept))

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Counts a request; `operation` is one of the file, or `none`."""
        self._requests.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def text(self) -> Text:
        """All of them."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Text(prometheus.generate_latest(self.registry).decode(), kind)


class Watched(Collector):
    """What is read at the scrape."""

    def __init__(self, service: Service, kept: Kept) -> None:
        self._service, self._kept = service, kept

    def collect(self) -> Iterator[Metric]:
        """Of this moment."""
        service = self._service
        runtime, engine = service.runtime, service.engine

        def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)

        yield gauge("leader", "1 if this controller leads.", service.leads)
        yield gauge("term", "Term of the controller that leads.", service.term)
        yield gauge("switches", "Switches that are connected.", len(runtime.server.sessions))
        yield gauge("switches_failed", "Switches that did not take their rules.", len(runtime.core.stale))
        registered = sum(service.registry.registered(host) for host in service.config.hosts)
        yield gauge("hosts_registered", "Hosts whose lease holds.", registered)
        vnics = sum(service.registry.vnics(host) for host in service.config.hosts)
        yield gauge("vnics", "vNICs that are announced and count.", vnics)
        places = runtime.core.best_effort.places.all().values()
        behind = sum(len(one.places) for one in places)
        yield gauge("plain_vnics", "vNICs behind plain NICs that send without a path, too.", behind)
        short = runtime.core.best_effort.is_short
        yield gauge("plain_tags_missing", "1 if best effort between plain NICs has too few tags.", short)
        yield gauge("paths_changing", "Paths of which a change is under way.", len(engine.running))
        yield self._paths()
        yield CounterMetricFamily(
            f"{PREFIX}_late_frames", "Late frames that hosts have reported.", value=service.late
        )
        yield CounterMetricFamily(
            f"{PREFIX}_late_records_ignored",
            "Records of late frames of paths that are not there, or go to another host.",
            value=service.ignored,
        )
        yield self._decisions()
        yield CounterMetricFamily(
            f"{PREFIX}_refusals_unrecorded",
            "Refused requests without a decision of their own: repeated, or too many of one host.",
            value=engine.refusals.counted,
        )
        yield from self._links()

    def _paths(self) -> Metric:
        states = Counter(self._service.state(path)[0] for path in self._service.engine.paths.values())
        found = GaugeMetricFamily(f"{PREFIX}_paths", "Paths by state.", labels=["state"])
        for state in (*(state.value for state in PathState), "violated"):
            found.add_metric([state], states[state])
        return found

    def _decisions(self) -> Metric:
        text = "Decisions by verdict since the start."
        found = CounterMetricFamily(f"{PREFIX}_decisions", text, labels=["verdict"])
        for verdict in Verdict:
            found.add_metric([verdict.value], self._kept.verdicts[verdict])
        return found

    def _links(self) -> Iterator[Metric]:
        engine = self._service.engine
        up = GaugeMetricFamily(f"{PREFIX}_link_up", "1 if a direction of a link works.", labels=["link"])
        reserved = GaugeMetricFamily(
            f"{PREFIX}_link_reserved_bits", "Reserved at a direction of a link, bit/s.", labels=["link"]
        )
        reservable = GaugeMetricFamily(
            f"{PREFIX}_link_reservable_bits", "Of it for paths, bit/s.", labels=["link"]
        )
        usage = {str(one["link"]): one for one in engine.book.usage()}
        for name, terms in sorted(engine.book.terms.items()):
            up.add_metric([name], engine.up([name]))
            reserved.add_metric([name], float(str(usage[name]["reserved-bits"])))
            reservable.add_metric([name], terms.reservable)
        yield from (up, reserved, reservable)
