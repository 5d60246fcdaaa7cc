"""Style sheet and script of the page: the colours of the reports, system fonts, no external files."""

from __future__ import annotations

from gyrograd.reporting.palette import DARK, LIGHT


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--gg-{name}: {value}; " for name, value in colours.items())


STYLE = (
    f"""
:root {{ {_variables(LIGHT)} }}
.dark {{ {_variables(DARK)} }}
"""
    + """
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
.gg-title h1 { font-size: 1.5rem; margin: 0; font-weight: 700; }
.gg-title p { margin: .2rem 0 0; color: var(--gg-dim); }
.gg-grid { display: grid; gap: .6rem; }
.gg-of-2 { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.gg-of-3 { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.gg-of-6 { grid-template-columns: repeat(6, minmax(0, 1fr)); }
.gg-figure { margin: 0; min-width: 0; }
.gg-figure img { width: 100%; display: block; border-radius: 4px; image-rendering: pixelated;
  border: 1px solid var(--gg-line); margin: 0; }
.gg-figure figcaption { font-size: .8rem; color: var(--gg-dim); text-align: center; line-height: 1.25;
  margin-top: .2rem; overflow-wrap: anywhere; }
.gg-methods { display: grid; gap: 1rem; margin-top: .7rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 250px), 1fr)); }
.gg-method { border: 1px solid var(--gg-line); border-radius: 8px; padding: .7rem; background: var(--gg-paper); }
.gg-method h4, .gg-page h4 { margin: 0 0 .5rem; font-size: 1rem; color: var(--gg-ink); font-weight: 600; }
.gg-reading { font-weight: 600; margin: .8rem 0 0 !important; color: var(--gg-ink); line-height: 1.4; }
.gg-buttons button { font-size: .95rem !important; padding: .4rem .8rem; min-height: 2.4rem; }
.gg-about, .gg-remark { font-size: .85rem; color: var(--gg-dim); line-height: 1.4;
  margin: .5rem 0 0 !important; }
.gg-result { display: grid; grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); gap: 1.2rem; align-items: start; }
.gg-page .gg-table, .gg-table { width: 100%; border: 0 !important; border-collapse: collapse; margin: 0;
  font-size: .9rem; color: var(--gg-ink); }
.gg-table caption { text-align: left; font-weight: 600; padding-bottom: .3rem; caption-side: top; }
.gg-table th, .gg-table td { text-align: left; padding: .35rem .5rem .35rem 0; vertical-align: top; border: 0;
  border-top: 1px solid var(--gg-line); font-weight: 400; background: none; overflow-wrap: anywhere; }
.gg-table thead th { border-top: 0; font-weight: 600; }
.gg-table tbody th { color: var(--gg-dim); overflow-wrap: normal; }
.gg-table td b { font-weight: 600; font-variant-numeric: tabular-nums; }
.gg-table small { color: var(--gg-dim); font-size: .8rem; }
.gg-table td.gg-bad b { color: var(--gg-bad); }
.gg-page h4.gg-below, .gg-page .gg-grid + .gg-table { margin-top: 1rem; }
.gg-notes { margin: .7rem 0 0 !important; padding: .6rem .8rem .6rem 1.6rem !important; background: var(--gg-fair-back);
  color: var(--gg-fair); border-radius: 6px; font-size: .85rem; list-style: disc; line-height: 1.4; }
.gg-problem { background: var(--gg-bad-back); color: var(--gg-bad); border-radius: 6px; padding: .7rem .9rem;
  margin: 0; }
.gg-verdict { font-weight: 600; font-size: 1.05rem; margin: 0 0 .8rem !important; color: var(--gg-ink); }
.gg-alone, body[data-maps="alone"] .gg-over { display: none !important; }
body[data-maps="alone"] .gg-alone { display: block !important; }
.gg-legend { display: flex; gap: .6rem; align-items: center; justify-content: flex-end; flex-wrap: wrap;
  font-size: .85rem; color: var(--gg-dim); margin: .5rem 0 1rem !important; }
.gg-legend img { width: 9rem; height: .7rem; border-radius: 3px; margin: 0; }
.gg-buttons > * { flex: 0 1 auto !important; }
.gg-buttons .gg-view { margin-left: auto; width: auto !important; }
.gg-view .wrap { flex-wrap: nowrap !important; gap: .4rem; align-items: center; height: 100%; }
.gg-view label { padding: .4rem .6rem !important; font-size: .85rem; white-space: nowrap; }
.gg-asked { display: none !important; margin: 0 0 .6rem !important; padding: .4rem .7rem; border-radius: 6px;
  font-size: .9rem; background: var(--gg-fair-back); color: var(--gg-fair); }
[data-old] .gg-asked { display: block !important; }
[id^="gg-"][id$="-asked"]:not([data-old]) { display: none !important; }
.gg-page[data-old] .html-container { opacity: .3 !important; filter: grayscale(1); }
/* Gradio fades whatever waits for an event, also for one that turns out to change nothing. */
.gg-page .html-container { opacity: 1 !important; transition: none !important; }
.gg-preview { display: grid; gap: .6rem; }
.gg-samples, .gg-samples .grid-wrap { height: auto !important; min-height: 0 !important; max-height: none; padding: 0; }
.gg-samples .grid-container { grid-template-columns: repeat(4, minmax(0, 1fr)) !important; gap: .4rem; padding: 0;
  grid-template-rows: none !important; grid-auto-rows: auto !important; }
.gg-samples .grid-container button { min-width: 0; width: 100%; height: auto !important; aspect-ratio: 1; }
.gg-words { line-height: 1.4; font-size: .95rem; }
.gg-words dl { margin: 0 0 1rem; display: grid; grid-template-columns: minmax(8rem, 1fr) 4fr; gap: .3rem 1rem; }
.gg-words dt { font-weight: 600; }
.gg-words dd { margin: 0; color: var(--gg-dim); }
@media (max-width: 760px) {
  /* On a narrow page the answer comes before what it was asked with. */
  .gg-picker { order: 1; }
  .gg-page[id$="-out"] { order: -1; }
  [id^="gg-"][id$="-asked"] { order: -2; }
  .gradio-container .main { padding: 1rem .75rem; }
  .tab-wrapper button { padding-left: .5rem !important; padding-right: .5rem !important; }
  .gg-result { grid-template-columns: minmax(0, 1fr); }
  .gg-of-6 { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .gg-large { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .gg-large .gg-figure:first-child { display: none; }
  .gg-legend { justify-content: flex-start; gap: .4rem; font-size: .8rem; }
  .gg-legend img { width: 5rem; }
  .gg-preview { grid-template-columns: 2fr 3fr; align-items: start; }
  .gg-words dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .gg-words dd { margin-bottom: .5rem; }
}
"""
)

SCRIPT = """
(() => {
  // An answer that is not about the image on the left, or not the answer to the last question, is dimmed before it can
  // be seen: observers are called before the browser paints. Messages of the server may come in any order.
  const mark = (place, old) => {
    if (old && !("old" in place.dataset)) place.dataset.old = "";
    if (!old && "old" in place.dataset) delete place.dataset.old;
  };
  // The last question is the one with the highest number, whichever came last.
  const last = {};
  const check = () => {
    const image = document.querySelector("#gg-preview [data-image]");
    for (const key of ["explain", "attack", "compare"]) {
      const out = document.getElementById(`gg-${key}-out`), note = document.getElementById(`gg-${key}-asked`);
      if (!out || !note || !image) continue;
      const answer = out.querySelector("[data-answers]"), asked = note.querySelector("[data-asked]");
      if (asked) last[key] = Math.max(last[key] ?? 0, Number(asked.dataset.asked));
      const old = answer && asked && (Number(answer.dataset.answers) !== last[key]
        || answer.dataset.image !== image.dataset.image);
      mark(out, old);
      mark(note, old);
    }
  };
  const marks = { attributeFilter: ["data-image", "data-asked", "data-answers"] };
  new MutationObserver(check).observe(document, { childList: true, subtree: true, ...marks });
})();
"""
"""Dims answers that do not belong to the image or the last question."""
