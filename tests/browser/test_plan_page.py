"""The page of a plan in a real browser: choose a subgraph, search a node, zoom, drag; no console errors, no network requests.

Needs the `selenium` package and a Chromium with its driver, as Debian's packages chromium and chromium-driver install them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetero_core import Core
from hetero_core.network.subnetwork import cut_subnetwork
from hetero_core.plan import Plan, PlanStage
from hetero_core.reports.page import plan_to_html
from hetero_core.reports.single import plan_single_device
from hetero_core.reports.text import describe_conflict
from hetero_core.testing.models import light_model
from hetero_core.testing.transformers import decoder_model

webdriver = pytest.importorskip("selenium.webdriver", reason="the page is tested with selenium: pip install selenium")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402  # after the check that it is there
from selenium.webdriver.common.by import By  # noqa: E402  # as above
from selenium.webdriver.common.keys import Keys  # noqa: E402  # as above

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no chromium and chromedriver on the path: apt-get install chromium chromium-driver"
)
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--window-size=1400,900",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def plan() -> Plan:
    """DenseNet-121 on a split in which a device refuses Concat: more than a hundred subgraphs."""
    with Core() as core:
        network = core.read_network(light_model("densenet121"))
        drawn_plan = core.query_network(network, "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "Concat"}).plan
    assert drawn_plan is not None
    assert len(drawn_plan.stages) > 100
    return drawn_plan


@pytest.fixture
def page(browser: Any, plan: Plan, tmp_path: Path) -> Iterator[Any]:
    """The page, opened from its file; the browser's logs must be empty at the end."""
    yield open_page(browser, plan, tmp_path)
    check_logs(browser)


def open_page(browser: Any, plan: Plan, folder: Path) -> Any:
    return write_page(browser, folder, plan_to_html(plan, {0: 0.004, 1: 0.001}))


def write_page(browser: Any, folder: Path, text: str) -> Any:
    file = folder / "plan.html"
    file.write_text(text, encoding="utf-8", errors="replace")
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # drops messages of earlier pages
    browser.get(file.as_uri())
    return browser


def check_logs(browser: Any) -> None:
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [address for address in addresses if not address.startswith(("file://", "data:"))] == []
    assert len([address for address in addresses if address.startswith("file://")]) == 1


def find_box(page: Any, index: int) -> Any:
    return page.find_element(By.CSS_SELECTOR, f'.subgraph[data-key="{index}"]')


def read_transform(page: Any) -> str:
    return str(page.find_element(By.ID, "scene").get_attribute("transform"))


def test_page_shows_every_subgraph_and_the_legend(page: Any, plan: Plan) -> None:
    boxes = page.find_elements(By.CSS_SELECTOR, ".subgraph")
    assert len(boxes) == len(plan.stages)
    frame = page.find_element(By.ID, "drawing").rect
    for box in boxes:
        assert frame["x"] <= box.rect["x"] <= box.rect["x"] + box.rect["width"] <= frame["x"] + frame["width"]
    legend = [entry.text for entry in page.find_elements(By.CSS_SELECTOR, "#legend li")]
    assert [text.split(":")[0] for text in legend] == ["TEMPLATE", "CPU"]


def test_click_on_a_subgraph_lists_nodes_reasons_and_values(page: Any, plan: Plan) -> None:
    stage = next(stage for stage in plan.stages if stage.device == "CPU")
    find_box(page, stage.index).click()
    panel = page.find_element(By.ID, "panel")
    assert panel.find_element(By.TAG_NAME, "h2").text == f"subgraph {stage.index} on CPU"
    rows = page.find_elements(By.CSS_SELECTOR, "#nodes .node")
    assert [row.text.split()[0] for row in rows] == list(stage.nodes)
    assert "TEMPLATE: operator Concat is refused by TEMPLATE_REFUSED_OPERATORS" in rows[0].text
    for boundary in plan.boundaries:
        if stage.index in boundary.consumers:
            assert f"{boundary.type}, {boundary.nbytes} bytes" in panel.text
    assert "chosen" in find_box(page, stage.index).get_attribute("class")


def test_conflicts_stand_at_the_node_that_they_keep_out(page: Any, plan: Plan) -> None:
    conflict = plan.conflicts[0]
    index = next(stage.index for stage in plan.stages if conflict.node in stage.nodes)
    find_box(page, index).click()
    (row,) = [node for node in page.find_elements(By.CSS_SELECTOR, "#nodes .node") if node.text.split()[0] == conflict.node]
    assert f"kept out: {describe_conflict(plan, conflict)}" in row.text


def test_search_highlights_the_subgraph_and_enter_opens_it(page: Any, plan: Plan) -> None:
    stage = plan.stages[60]
    name = stage.nodes[-1]
    search = page.find_element(By.ID, "search")
    search.send_keys(name)
    highlighted = page.find_elements(By.CSS_SELECTOR, ".subgraph.found")
    expected = [each.index for each in plan.stages if any(name.lower() in node.lower() for node in each.nodes)]
    assert [int(box.get_attribute("data-key")) for box in highlighted] == expected
    assert "node" in page.find_element(By.ID, "found").text
    search.send_keys(Keys.ENTER)
    assert page.find_element(By.CSS_SELECTOR, "#panel h2").text == f"subgraph {stage.index} on {stage.device}"
    assert page.find_element(By.CSS_SELECTOR, "#nodes .chosen").text.split()[0] == name
    search.send_keys(Keys.ESCAPE)
    assert page.find_elements(By.CSS_SELECTOR, ".subgraph.found") == []


def test_search_without_a_hit_says_so(page: Any) -> None:
    page.find_element(By.ID, "search").send_keys("no node is called so")
    assert page.find_element(By.ID, "found").text == "no such node"


def test_wheel_zooms_and_fit_returns(page: Any) -> None:
    fitted = read_transform(page)
    ActionChains(page).scroll_from_origin(
        webdriver.common.actions.wheel_input.ScrollOrigin.from_element(page.find_element(By.ID, "drawing")), 0, 200
    ).perform()
    assert read_transform(page) != fitted
    page.find_element(By.ID, "zoom-fit").click()
    assert read_transform(page) == fitted


def test_drag_moves_the_drawing_and_chooses_nothing(page: Any) -> None:
    before = read_transform(page)
    ActionChains(page).drag_and_drop_by_offset(find_box(page, 0), 60, 40).perform()
    assert read_transform(page) != before
    assert page.find_elements(By.CSS_SELECTOR, ".subgraph.chosen") == []


def test_keyboard_chooses_a_subgraph(page: Any) -> None:
    find_box(page, 2).send_keys(Keys.ENTER)
    assert page.find_element(By.CSS_SELECTOR, "#panel h2").text.startswith("subgraph 2 on ")


def test_hostile_names_are_shown_and_run_nothing(browser: Any, tmp_path: Path) -> None:
    name = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">'"
    stage = PlanStage(0, name, (name, "__proto__"), (), (name,))
    operators = {name: name, "__proto__": "constructor"}
    plan = Plan(name, (name,), dict.fromkeys(operators, name), operators, {"__proto__": {"toString": name}}, {}, (stage,), ())
    page = open_page(browser, plan, tmp_path)
    find_box(page, 0).click()
    rows = page.find_elements(By.CSS_SELECTOR, "#nodes .node")
    assert [row.text.split("\n")[0] for row in rows] == [f"{name} {name}", "__proto__ constructor"]
    assert f"toString: {name}" in rows[1].text
    page.find_element(By.ID, "search").send_keys("__proto__")
    assert page.title == f"{name}: 2 nodes, 1 subgraph"
    check_logs(page)


def test_nodes_of_a_subgraph_are_drawn_with_their_links(browser: Any, tmp_path: Path) -> None:
    with Core() as core:
        network = core.read_network(light_model("squeezenet"))
        plan = core.query_network(network, "HETERO:TEMPLATE,CPU", {"TEMPLATE_REFUSED_OPERATORS": "MaxPool"}).plan
        one = plan_single_device(network, "CPU", core.query_network(network, "CPU"))
    assert plan is not None
    stage = max(plan.stages, key=lambda each: len(each.nodes))
    write_page(browser, tmp_path, plan_to_html(plan, {}, network=network))
    find_box(browser, stage.index).click()
    browser.find_element(By.ID, "draw-nodes").click()
    assert [box.get_attribute("data-key") for box in browser.find_elements(By.CSS_SELECTOR, ".inner")] == list(stage.nodes)
    part = cut_subnetwork(network, stage.nodes)
    links = sum(value in part.index_of_producer for node in part.nodes for value in dict.fromkeys(node.inputs))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#scene .link")) == links
    browser.find_elements(By.CSS_SELECTOR, ".inner")[1].click()
    assert browser.find_element(By.CSS_SELECTOR, "#nodes .chosen").text.split()[0] == stage.nodes[1]
    browser.find_element(By.ID, "zoom-back").click()
    assert browser.find_elements(By.CSS_SELECTOR, ".inner") == []
    assert find_box(browser, stage.index).is_displayed()
    check_logs(browser)
    write_page(browser, tmp_path, plan_to_html(one, {}, network=network))
    assert len(browser.find_elements(By.CSS_SELECTOR, ".inner")) == len(network.nodes)
    check_logs(browser)


def test_thousand_nodes_begin_readable_and_center_the_chosen(browser: Any, tmp_path: Path) -> None:
    with Core() as core:
        network = core.read_network(decoder_model(layers=38))
        plan = plan_single_device(network, "CPU", core.query_network(network, "CPU"))
    write_page(browser, tmp_path, plan_to_html(plan, {}, network=network))
    assert len(network.nodes) == 1002
    assert read_transform(browser) == "translate(0 0) scale(0.7)"
    browser.find_elements(By.CSS_SELECTOR, ".inner")[1].click()
    browser.execute_script("document.getElementById('draw-nodes').click()")
    box, frame = browser.find_element(By.CSS_SELECTOR, ".inner.chosen").rect, browser.find_element(By.ID, "drawing").rect
    assert abs(box["x"] + box["width"] / 2 - frame["x"] - frame["width"] / 2) < 2
    check_logs(browser)


def test_panel_lists_the_slowest_parts_and_links_to_the_trace(browser: Any, plan: Plan, tmp_path: Path) -> None:
    write_page(browser, tmp_path, plan_to_html(plan, {0: 0.001, 3: 0.004}, transfers={2: (0.002, 64)}, trace="runs/trace.json"))
    rows = browser.find_elements(By.CSS_SELECTOR, "#panel .row")
    assert [row.text for row in rows] == [
        f"subgraph 3 on {plan.stages[3].device}: 4.000 ms",
        f"subgraph 0 on {plan.stages[0].device}: 1.000 ms",
        "of subgraph 2: 2.000 ms, 64 bytes",
    ]
    assert browser.find_element(By.CSS_SELECTOR, "#panel a").get_attribute("href") == (tmp_path / "runs/trace.json").as_uri()
    rows[0].click()
    assert browser.find_element(By.CSS_SELECTOR, "#panel h2").text == f"subgraph 3 on {plan.stages[3].device}"
    check_logs(browser)
