"""A check as text for where it runs: a line for each figure, JUnit XML, a GitHub job summary and annotations."""

import math
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from spectune.decide.check import Check, Finding, Status
from spectune.decide.metrics import METRICS
from spectune.report.markdown import table

_LEVELS = {"regressed": "error", "too-noisy": "warning"}


def name_of(finding: Finding) -> str:
    """The figure as a reader knows it."""
    name = METRICS[finding.metric].name.format(n=finding.choice.shape.verified_tokens)
    return f"{name}, {finding.place}" if finding.place else name


def change_text(finding: Finding) -> str:
    """`+3.1% [−0.2%, +6.4%]`."""
    if finding.change is None:
        return "not comparable"
    if finding.low is None or finding.high is None:
        return f"{finding.change:+.1%}"
    return f"{finding.change:+.1%} [{finding.low:+.1%}, {finding.high:+.1%}]"


def status_text(finding: Finding) -> str:
    """Its status; why it is fine where its interval alone does not tell, or what made a speed-up change."""
    if finding.negligible:
        return f"{finding.status}: next to nothing of a round"
    why = finding.split.sentence if finding.split and finding.status in ("regressed", "improved") else None
    return f"{finding.status}: {why}" if why else finding.status


def remedy(finding: Finding) -> str:
    """What would settle a figure that is too noisy: costs differ more between runs than within, so more runs."""
    if finding.more is None or finding.more > 40:  # times the data: hopeless
        return "profile both again on a quiet machine, or compare --only acceptance"
    if finding.part == "acceptance":
        return f"{finding.more:.1f} times the prompts would settle it"
    runs = f"{math.ceil(finding.more)} times the profiles of each side"
    return f"{runs} would settle it (--also-baseline, --also-candidate)"


def headline(check: Check) -> str:
    """The verdict in a line."""
    if check.same:
        return "One and the same profile, given twice: nothing can differ"
    if check.verdict == "not-comparable":
        return "Nothing of the two can be compared"
    deciding = [finding for finding in check.findings if finding.headline]
    if check.verdict == "regressed":
        return f"Regressed ({', '.join(check.causes)}): {_listed(deciding, 'regressed')}"
    if check.verdict == "too-noisy":
        noisy: dict[str, dict[str, None]] = {}
        for finding in deciding:
            if finding.status == "too-noisy":
                noisy.setdefault(remedy(finding), {})[name_of(finding)] = None
        return "Too noisy to tell: " + "; ".join(f"{', '.join(names)}: {settles}" for settles, names in noisy.items())
    better = _listed(deciding, "improved")
    return f"Fine; improved: {better}" if better else "Fine: no figure regressed"


def _listed(findings: Sequence[Finding], status: Status) -> str:
    changes = [f"{name_of(finding)} {change_text(finding)}" for finding in findings if finding.status == status]
    return "; ".join(dict.fromkeys(changes))


def summary_markdown(check: Check) -> str:
    """For a job's summary page: the verdict, the figures that decide, what explains them."""
    header = ("figure", "draft", "T", "K", "change [95%]", "status")
    parts = [f"### spectune check: {check.verdict}", headline(check) + "."]
    deciding = [finding for finding in check.findings if finding.headline]
    explaining = [finding for finding in check.findings if not finding.headline and finding.status != "ok"]
    parts += [table("", header, map(_row, deciding))] if deciding else []
    parts += [table("", header, map(_row, explaining), "What explains it:")] if explaining else []
    parts += ["\n".join(f"- {difference}" for difference in check.differences)] if check.differences else []
    return "\n\n".join(parts) + "\n"


def _row(finding: Finding) -> tuple[object, ...]:
    choice = finding.draft, f"{finding.temperature:g}", finding.num_speculative_tokens
    return name_of(finding), *choice, change_text(finding), status_text(finding)


def annotations(check: Check) -> Iterator[str]:
    """GitHub workflow commands, one for each figure that regressed or is too noisy."""
    for finding in check.findings:
        if finding.headline and finding.status in _LEVELS:
            what = f"{name_of(finding)} of {finding.draft} at T = {finding.temperature:g}: {change_text(finding)}"
            level, title = _LEVELS[finding.status], f"spectune check: {finding.status}"
            yield f"::{level} title={_escaped(title, ',:')}::{_escaped(what)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def junit_xml(check: Check) -> str:
    """A test case for each figure that decides: regressed is a failure, too noisy an error, not comparable skipped."""
    findings = [finding for finding in check.findings if finding.headline]
    tags = {"regressed": "failure", "too-noisy": "error", "not-comparable": "skipped"}
    attributes = {"name": "spectune check", "tests": str(len(findings))}
    for status, name in zip(tags, ("failures", "errors", "skipped"), strict=True):
        attributes[name] = str(sum(finding.status == status for finding in findings))
    suite = ElementTree.Element("testsuite", attributes)
    for finding in findings:
        draft = "".join(character if character.isprintable() else "?" for character in finding.draft)
        place = f"{draft} at T = {finding.temperature:g}, K = {finding.num_speculative_tokens}"
        case = ElementTree.SubElement(suite, "testcase", classname=f"spectune.{place}", name=name_of(finding))
        text = f"{status_text(finding)}: {change_text(finding)}"
        if tag := tags.get(finding.status):
            more = f"; {remedy(finding)}" if finding.status == "too-noisy" else ""
            ElementTree.SubElement(case, tag, message=text + more)
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
