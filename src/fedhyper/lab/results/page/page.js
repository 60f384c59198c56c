"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Map(); // part -> numbers of the series that are not shown in it
  let drawn = [];

  // Columns are a third of the size of rows. Each chart gets rows of its own, for Vega writes into them.
  const rows = ({ length, columns }) =>
    Array.from({ length }, (_, i) => {
      const row = {};
      for (const [name, values] of Object.entries(columns)) if (values[i] !== null) row[name] = values[i];
      return row;
    });

  // The page is complete in itself: whatever a specification asks to load, it gets nothing.
  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

  // Vega-Lite 6.4 forgets, for text fields only, that under `nearest` the datum sits in a datum.
  const mend = (spec) => {
    for (const mark of spec.marks ?? []) {
      const tooltip = mark.encode?.update?.tooltip;
      if (tooltip?.signal?.includes("datum.datum[")) tooltip.signal = tooltip.signal.replace(/(?<!\.)datum\["series"\]/g, 'datum.datum["series"]');
      mend(mark);
    }
    return spec;
  };

  async function draw(box) {
    const { spec, data, series, part } = page.charts[Number(box.dataset.chart)];
    const datasets = Object.fromEntries(Object.entries(data).map(([name, i]) => [name, rows(page.data[i])]));
    const { view } = await vegaEmbed(box, { ...spec, datasets }, {
      ast: true, // Vega's interpreter instead of eval, so that the page needs no 'unsafe-eval'
      actions: false,
      config: page.themes[dark.matches ? 1 : 0],
      defaultStyle: false,
      loader,
      patch: mend,
      renderer: "svg",
      tooltip: { disableDefaultStyle: true },
    });
    box.classList.toggle("dark", dark.matches);
    return { box, view, series, part };
  }

  async function drawAll() {
    drawn.forEach(({ view }) => view.finalize());
    drawn = [];
    // One after the other: the first chart is on the screen while the rest is still being drawn.
    for (const box of document.querySelectorAll("[data-chart]")) drawn.push(await draw(box));
    await hide();
    document.documentElement.dataset.drawn = String(drawn.length);
  }

  async function hide() {
    for (const { view, series, part } of drawn) if (series) await view.signal("hidden", [...(hidden.get(part) ?? [])]).runAsync();
  }

  document.addEventListener("click", async ({ target }) => {
    const chip = target.closest("[data-series]");
    if (chip) {
      const s = Number(chip.dataset.series), part = Number(chip.dataset.part);
      const mine = hidden.get(part) ?? new Set();
      hidden.set(part, mine);
      if (!mine.delete(s)) mine.add(s);
      for (const twin of document.querySelectorAll(`[data-part="${part}"][data-series="${s}"]`)) twin.setAttribute("aria-pressed", String(!mine.has(s)));
      await hide();
    }
    const save = target.closest("[data-save]");
    if (save) {
      const box = save.closest("figure").querySelector("[data-chart]");
      const link = document.createElement("a");
      link.href = await drawn.find((one) => one.box === box).view.toImageURL(save.dataset.save, 2);
      link.download = `${box.id}.${save.dataset.save}`;
      link.click();
    }
  });
  // A table that is wider than the screen says so.
  const measured = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 1);
  });
  for (const box of document.querySelectorAll(".scroll")) measured.observe(box);

  dark.addEventListener("change", drawAll);
  drawAll();
})();
