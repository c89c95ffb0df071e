"""Pods that ask by a label, through the admission webhook: from its installation to its removal, and while it is not there."""

from __future__ import annotations

import json
import time
from typing import Any

from harness import road

import build
import cluster
from cluster import API_ADDRESS, NODE_ADDRESS, PLACE, ClusterFailed, wait_for
from stage import SOCKET, TALK_SERVER, Stage, expect, pod

MANIFESTS = str(road.REPOSITORY / "deploy/kubernetes/webhook")
NAME = "millrace-admission"
KINDS = (
    "pods,deployments,services,serviceaccounts,secrets,roles,rolebindings,clusterroles,clusterrolebindings,mutatingwebhookconfigurations"
)
LIFETIME_S = 15
"""Of certificates that are to be renewed while it is looked on."""
RENEWALS = 3


def play(stage: Stage) -> None:
    """All of it; the pods of the cases before and after are not touched."""
    says_the_same_by_the_chart(stage)
    # Its pods ask the API server at the address that every pod knows.
    stage.cluster.lead(API_ADDRESS, [f"tcp dport 443 dnat to {NODE_ADDRESS}:6443"])
    stage.cluster("apply", "-k", MANIFESTS)
    answers(stage)
    is_on_the_ring_by_the_label(stage)
    is_said_what_is_wrong(stage)
    pods_start_without_it(stage)
    renews(stage)
    stage.cluster("delete", "-k", MANIFESTS, patience_s=120)
    wait_for("nothing to be left", lambda: not left(stage), 60.0)
    expect(not admitted(stage, "true"), "a pod asks, and there is no webhook")


def says_the_same_by_the_chart(stage: Stage) -> None:
    """The chart has the manifests where it is told to, and else nothing of them."""
    words = ["helm", f"--kubeconfig={PLACE}/kubeconfig", "--namespace=millrace", "template", "millrace"]
    words += [str(road.REPOSITORY / "deploy/helm"), f"--kube-version={build.KUBERNETES}"]
    expect(NAME not in cluster.run(words), "the chart has a webhook that nobody has asked for")
    chosen = cluster.run([*words, "--set=webhook.enabled=true", "--show-only=templates/webhook.yaml"])
    templated, customized = objects(stage, chosen), objects(stage, stage.cluster("kustomize", MANIFESTS))
    expect(templated == customized, f"the chart has {templated}, the manifests {customized}")


def objects(stage: Stage, text: str) -> dict[str, Any]:
    """Objects by kind and name."""
    items = json.loads(stage.cluster("apply", "--dry-run=client", "-o", "json", "-f", "-", text=text))["items"]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in items}


def answers(stage: Stage) -> None:
    """Waits until all replicas are ready, and leads the Service to them as a kube-proxy would."""
    rollout = ("rollout", "status", f"deployment/{NAME}", "--timeout=90s")
    stage.cluster("--namespace=millrace", *rollout, patience_s=100)
    wait_for("the old ones to be gone", lambda: len(replicas(stage)) == 2)
    ways = [f"tcp dport 443 dnat to {each['status']['podIP']}:8443" for each in replicas(stage)]
    address = stage.cluster.get("service", NAME, "--namespace=millrace")["spec"]["clusterIP"]
    stage.cluster.lead(str(address), ways)
    wait_for("an answer", lambda: admitted(stage, "true") == {SOCKET: "1"})


def replicas(stage: Stage) -> list[dict[str, Any]]:
    """Its pods."""
    found: list[dict[str, Any]] = stage.cluster.get("pods", "--namespace=millrace", f"--selector=app.kubernetes.io/name={NAME}")["items"]
    return found


def admitted(stage: Stage, label: str, *words: str) -> dict[str, str]:
    """The limits that a pod with the label would get."""
    asked = pod("asked", ["true"], device=None, label=label)
    answer = stage.cluster("create", "--dry-run=server", "-o", "json", "-f", "-", *words, given=asked)
    limits: dict[str, str] = json.loads(answer)["spec"]["containers"][0]["resources"].get("limits", {})
    return limits


def is_on_the_ring_by_the_label(stage: Stage) -> None:
    """Nothing but the label, and every byte is compared; `variable` stands for the other resource."""
    stage.pod("labelled-echo", TALK_SERVER, device=None, label="true")
    stage.talks("labelled", "labelled-echo", device=None, label="true")
    stage.hangs_up("labelled")
    stage.delete("labelled-echo")
    expect(admitted(stage, "variable") == {f"{SOCKET}-variable": "1"}, "no limit for images with musl")


def is_said_what_is_wrong(stage: Stage) -> None:
    """Another value changes nothing, and whoever makes the pod is told."""
    expect(not admitted(stage, "yes"), "a limit for no reason")
    said = ""
    try:
        admitted(stage, "yes", "--warnings-as-errors")
    except ClusterFailed as error:
        said = str(error)
    expect('"variable"' in said, f"no warning: {said}")


def pods_start_without_it(stage: Stage) -> None:
    """It fails open, and is back when there are replicas again."""
    scale = ("--namespace=millrace", "scale", f"deployment/{NAME}")
    stage.cluster(*scale, "--replicas=0")
    wait_for("it to be gone", lambda: not replicas(stage))
    began = time.monotonic()
    stage.pod("unanswered", ["sleep", "1000"], device=None, label="true")
    took = time.monotonic() - began
    limits = stage.cluster.get("pod", "unanswered")["spec"]["containers"][0]["resources"]
    expect(limits == {}, f"somebody has answered: {limits}")
    print(f"figure: without a webhook, a pod with the label ran after {took:.1f} s")
    stage.delete("unanswered")
    stage.cluster(*scale, "--replicas=2")
    answers(stage)


def renews(stage: Stage) -> None:
    """Each pod gets its limit while certificates of seconds are renewed again and again."""
    command = ["/bin/millrace-cluster", "webhook", f"--lifetime={LIFETIME_S}", "--period=1"]
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/command", "value": command}]
    stage.cluster("--namespace=millrace", "patch", f"deployment/{NAME}", "--type=json", f"--patch={json.dumps(patch)}")
    answers(stage)
    # What the Secret has is good for months. Once nothing is there, they make one of their own.
    emptied = json.dumps([{"op": "remove", "path": "/data"}])
    before = bundle(stage)
    stage.cluster("--namespace=millrace", "patch", "secret", NAME, "--type=json", f"--patch={emptied}")
    wait_for("another certificate", lambda: bundle(stage) != before)
    wait_for("an answer", lambda: admitted(stage, "true") == {SOCKET: "1"})
    seen, asked = {bundle(stage)}, 0
    end = time.monotonic() + LIFETIME_S * (RENEWALS + 1)
    while len(seen) <= RENEWALS:
        expect(time.monotonic() < end, f"{len(seen) - 1} renewals in {LIFETIME_S * (RENEWALS + 1)} s")
        limits = admitted(stage, "true")
        expect(limits == {SOCKET: "1"}, f"the limit is missing while certificates are renewed, after {asked} pods: {limits}")
        seen.add(bundle(stage))
        asked += 1
    print(f"figure: {asked} pods asked by the label while certificates were renewed {RENEWALS} times, and each got its limit")


def bundle(stage: Stage) -> str:
    """Whom API servers believe."""
    webhooks = stage.cluster.get("mutatingwebhookconfiguration", NAME)["webhooks"]
    return str(webhooks[0]["clientConfig"].get("caBundle", ""))


def left(stage: Stage) -> list[str]:
    """What there is of it."""
    found = stage.cluster.get(KINDS, "--all-namespaces", f"--selector=app.kubernetes.io/name={NAME}")["items"]
    return [f"{each['kind']} {each['metadata']['name']}" for each in found]
