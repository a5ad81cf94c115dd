"""The page of `whichlayers watch` in a real browser: live updates, progress, loss curves of running trials."""

from __future__ import annotations

import socket
import sqlite3
import threading

from browser_pages import chart, opening, wait_until
from synthetic_results import incremental, lifelike, write_results


def test_watch_fills_in_while_a_run_writes(browser, tmp_path):
    from whichlayers.cli.watch import HOST, make_server, start_rendering
    from whichlayers.results.folder import StudyFolder

    folder = write_results(tmp_path / "live", incremental(), lambda p: lifelike(6)(p) if p.x < 3 else None)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    with make_server(StudyFolder(folder), port) as server:
        start_rendering(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with opening(browser, f"http://{HOST}:{port}/") as page:
            figure = chart(page, "incremental")
            drawn = figure.locator("svg[role=img] path[stroke-width='1.3']")  # a marker a point
            assert "9 of 21 trials finished" in page.locator("#status").inner_text()
            rows = page.locator("#trials tbody tr")
            page.locator("#trials select").select_option("done")
            wait_until(page, lambda: rows.count() == 9)
            page.locator("#trials input").fill("incremental 500 no-such-word")
            wait_until(page, lambda: rows.count() == 0)
            page.locator("#trials input").fill("")
            page.locator("#trials select").select_option("")
            wait_until(page, lambda: rows.count() == 21)
            page.locator("#trials thead button", has_text="seed").click()
            wait_until(page, lambda: page.locator("#trials th[aria-sort=ascending]").count() == 1)
            seeds = [row.locator("td").nth(6).inner_text() for row in rows.all()]
            assert seeds == sorted(seeds)
            assert drawn.count() == 3
            figure.locator("label", has_text="single trials").locator("input").uncheck()
            with sqlite3.connect(folder / "results.db") as db:
                for (trial,) in db.execute("SELECT id FROM trials WHERE status = 'pending'").fetchall():
                    db.execute("INSERT INTO epochs VALUES (?, 2, 'accuracy', 0.9)", (trial,))
                    db.execute("UPDATE trials SET status = 'done' WHERE id = ?", (trial,))
            wait_until(page, lambda: drawn.count() == 7)
            assert "21 of 21 trials finished" in page.locator("#status").inner_text()
            assert page.title() == "100% · a study · whichlayers"
            assert page.locator("#status").get_attribute("class") == "soft"
            assert page.locator("#trials .scroll-hint").count() == 1  # also after an update
            assert page.locator("main > :last-child").inner_text().startswith("Generated")
            assert not figure.locator("label", has_text="single trials").locator("input").is_checked()
        server.shutdown()


def test_watch_draws_the_loss_of_running_trials(browser, tmp_path, monkeypatch):
    from whichlayers.cli import status
    from whichlayers.cli.watch import HOST, make_server, start_rendering
    from whichlayers.results.folder import StudyFolder
    from whichlayers.results.lock import LockHolder
    from whichlayers.results.losses import LossLog

    points = incremental(trials=2, ks=(0, 3))
    folder = write_results(tmp_path / "live", points, lambda p: None)
    with sqlite3.connect(folder / "results.db") as db:
        db.execute("UPDATE trials SET status = 'running'")
    log = LossLog(folder)
    for step in (20, 40):
        log.record(
            step,
            {
                p.trial.id: 1 - step / 100 - p.trial.seed / 8 if p.x else 0.3 + p.trial.seed / 8
                for p in points
            },
        )
    log.flush()
    monkeypatch.setattr(status, "lock_holder", lambda path: LockHolder("a-host", 1, 0.0))
    with make_server(StudyFolder(folder), None) as server:
        start_rendering(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address, ready = f"http://{HOST}:{server.server_address[1]}/", "#losses svg g.loss"
        with opening(browser, address, 390, ready) as page:
            curves = page.locator("#losses g.loss")
            assert curves.count() == len(points)
            assert page.locator("nav a", has_text="Training loss").is_visible()
            ticks = page.locator("#losses svg text[text-anchor=end]").all_text_contents()
            assert ticks == ["0", "0.2", "0.4", "0.6", "0.8"]
            share = sum(40 for _ in points) / sum(p.trial.steps for p in points)
            assert page.title().startswith(f"{int(100 * share)}% ·")
            assert f"{int(100 * share)}% done" in page.locator("#status").inner_text()
            strokes = page.locator("#losses g.loss path:first-child")
            assert len({one.get_attribute("stroke") for one in strokes.all()}) == len({p.x for p in points})
            assert page.locator("#losses .legend li").count() == len({p.x for p in points})
            # directly below the status while there is no result, below the results afterwards
            top = lambda selector: page.locator(selector).bounding_box()["y"]  # noqa: E731
            assert top("#status") < top("#losses") < 400 < top("#setup")
            page.locator("#losses g.loss circle").first.hover()
            assert "step 40 of" in page.locator("#losses .tooltip").inner_text()
            with sqlite3.connect(folder / "results.db") as db:
                db.execute("INSERT INTO epochs VALUES (?, 2, 'accuracy', 0.9)", (points[0].trial.id,))
                db.execute("UPDATE trials SET status = 'done' WHERE id = ?", (points[0].trial.id,))
            wait_until(page, lambda: page.locator("#main-findings").count() == 1)
            assert top("#main-findings") < top("#runs") < top("#losses")
        server.shutdown()
