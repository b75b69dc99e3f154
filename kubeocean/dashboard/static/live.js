// Loads the page again when the server reports a change. Without scripts, pages are complete and stay as they were loaded.
"use strict";
(() => {
  const events = new EventSource(document.currentScript.dataset.events);
  let loading = false, again = false;
  const show = (on) => { const mark = document.getElementById("live"); if (mark) mark.hidden = !on; };
  const load = async () => {
    if (loading) { again = true; return; }
    loading = true;
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!response.ok) return;
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("main");
      const shown = document.getElementById("main");
      if (fresh && shown && !shown.contains(document.getSelection().isCollapsed ? null : document.getSelection().anchorNode)) {
        const focused = document.activeElement?.getAttribute?.("href");
        const opened = [...shown.querySelectorAll("details")].map((each) => each.open);
        shown.replaceWith(document.adoptNode(fresh));
        document.querySelectorAll("#main details").forEach((each, at) => { if (at in opened) each.open = opened[at]; });
        if (focused) document.querySelector(`#main a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
        show(events.readyState === EventSource.OPEN);
      }
    } finally {
      loading = false;
      if (again) { again = false; load(); }
    }
  };
  events.addEventListener("open", () => show(true));
  events.addEventListener("error", () => show(false));
  events.addEventListener("change", load);
})();
