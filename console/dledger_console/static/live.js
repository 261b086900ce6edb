// Live part of a page: the server sends its HTML again whenever it changes.
//
// A hidden page keeps no stream open, because a browser has only a few connections to one host. A part is left as it is
// while the reader has selected text in it, or pauses it.

const SELECTED = "Paused while text is selected.";

export function follow(afterChange) {
  const part = document.getElementById("live");
  const path = part?.dataset.live;
  if (!path) {
    return;
  }
  const state = document.getElementById("live-state");
  const pause = document.getElementById("live-pause");
  let source = null;
  let paused = false;

  function tell(text, isTrouble) {
    if (state.textContent !== text) {
      state.textContent = text;
    }
    state.parentElement.classList.toggle("trouble", isTrouble);
  }

  function show(html) {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) {
      tell(SELECTED, false);
      return;
    }
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const key = focused?.getAttribute("href") ?? focused?.getAttribute("aria-label");
    const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    part.innerHTML = html;
    afterChange(part);
    part.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
    if (key) {
      const same = [...part.querySelectorAll("a[href], [aria-label]")].find(
        (element) => element.getAttribute("href") === key || element.getAttribute("aria-label") === key,
      );
      same?.focus({ preventScroll: true });
    }
    tell("Follows the cluster.", false);
  }

  function open() {
    source = new EventSource(path);
    source.addEventListener("part", (event) => show(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => tell(JSON.parse(event.data), true));
    source.addEventListener("ended", () => {
      close();
      location.reload();
    });
    source.addEventListener("error", () => tell("The console does not answer. What is shown may be old.", true));
  }

  function close() {
    source?.close();
    source = null;
  }

  function update() {
    const wanted = !paused && document.visibilityState === "visible";
    if (wanted && !source) {
      open();
    } else if (!wanted && source) {
      close();
    }
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Continue" : "Pause";
    if (paused) {
      tell("Paused.", false);
    }
    update();
  });
  document.addEventListener("visibilitychange", update);
  addEventListener("pagehide", close);
  update();
}
