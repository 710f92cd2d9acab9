// The token that was chosen in one page is the one that the next opens at, and the one that sentences are about.
{
  const texts = [...document.querySelectorAll("section.text")].map((section) => ({
    section,
    said: JSON.parse(section.querySelector("script").textContent),
  }));
  const follow = () => {
    const token = /^#token=(\d+)$/.exec(location.hash)?.[1];
    for (const link of document.querySelectorAll(".contents a")) link.hash = location.hash;
    for (const { section, said } of texts) {
      for (const link of section.querySelectorAll(".tokens a")) {
        if (link.hash === location.hash) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
      for (const [name, sentences] of Object.entries(said)) {
        const line = [...document.querySelectorAll(".contents p")].find((p) => p.dataset.name === name);
        if (line && token in sentences) line.textContent = sentences[token];
      }
    }
  };
  window.addEventListener("hashchange", follow);
  follow();
}
