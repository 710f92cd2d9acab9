// Clouds of points that move: seen from afar in parallel projection, turned by dragging, wound by a slider.
{
  const UP = Math.sin(Math.PI / 9);
  const FRONT = Math.cos(Math.PI / 9);
  const SECONDS = 7;
  const TAIL = 14;
  const EDGES = [[0, 1], [1, 3], [3, 2], [2, 0], [4, 5], [5, 7], [7, 6], [6, 4], [0, 4], [1, 5], [2, 6], [3, 7]];
  const CORNERS = [...Array(8).keys()].map((i) => [i & 1, i & 2, i & 4].map((bit) => (bit ? 1 : -1)));

  const play = (section) => {
    const find = (name) => section.querySelector(name);
    const { clouds, times, unit } = JSON.parse(find("script").textContent);
    const last = times.length - 1;
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let [now, turn, running, before] = [still.matches ? last : 0, 0.61, false, 0];
    const [button, slider, label] = [find(".play"), find(".time"), find("output")];
    const canvases = clouds.map(({ title }) => {
      const panel = document.createElement("div");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `Moving points: ${title}`);
      panel.append(title, canvas);
      find(".clouds").append(panel);
      return canvas;
    });

    const draw = () => {
      const style = getComputedStyle(section);
      const ink = style.getPropertyValue("--ink");
      const shade = (series) => (series < 0 ? ink : style.getPropertyValue(`--series-${series}`));
      const frame = Math.round(now);
      const [sine, cosine] = [Math.sin(turn), Math.cos(turn)];
      canvases.forEach((canvas, k) => {
        const sharp = window.devicePixelRatio || 1;
        const size = Math.round(canvas.clientWidth * sharp);
        if (!size) return;
        if (canvas.width !== size) [canvas.width, canvas.height] = [size, size];
        const pen = canvas.getContext("2d");
        const scale = size / 3;
        // To the right, upwards on the screen, and towards the eye.
        const seen = (x, y, z) => {
          const away = x * cosine + y * sine;
          return [size / 2 + scale * (y * cosine - x * sine), size / 2 - scale * (z * FRONT - away * UP), away];
        };
        pen.clearRect(0, 0, size, size);
        pen.strokeStyle = ink;
        pen.globalAlpha = 0.2;
        pen.lineWidth = Math.min(size / 300, sharp);
        pen.beginPath();
        for (const [a, b] of EDGES) {
          pen.moveTo(...seen(...CORNERS[a]).slice(0, 2));
          pen.lineTo(...seen(...CORNERS[b]).slice(0, 2));
        }
        pen.stroke();
        const { frames, series } = clouds[k];
        // Between two frames points go straight, as in the figures.
        const at = (when, i) => {
          const [before, after] = [frames[Math.floor(when)], frames[Math.ceil(when)]];
          const share = when - Math.floor(when);
          return seen(...[0, 1, 2].map((j) => (before[3 * i + j] * (1 - share) + after[3 * i + j] * share) / 1000));
        };
        series.forEach((one, i) => {
          pen.strokeStyle = pen.fillStyle = shade(one);
          pen.globalAlpha = 0.4;
          pen.beginPath();
          for (let when = Math.max(0, Math.floor(now) - TAIL); when <= now; when += 1) pen.lineTo(...at(when, i).slice(0, 2));
          const [x, y, near] = at(now, i);
          pen.lineTo(x, y);
          pen.stroke();
          pen.globalAlpha = 0.8 + 0.15 * near;
          pen.beginPath();
          pen.arc(x, y, Math.min(size / 90, 3 * sharp) * (1 + 0.2 * near), 0, 2 * Math.PI);
          pen.fill();
        });
      });
      slider.value = frame;
      label.textContent = `${unit} ${times[frame]}`;
      button.textContent = running ? "Pause" : "Play";
    };
    const tick = (clock) => {
      if (!running) return;
      const passed = before ? Math.min((clock - before) / 1000, 0.1) : 0;
      before = clock;
      now = Math.min(now + (passed * last) / SECONDS, last);
      turn += passed * 0.09;
      running = now < last;
      draw();
      if (running) requestAnimationFrame(tick);
    };
    const start = () => {
      if (now >= last) now = 0;
      [running, before] = [true, 0];
      requestAnimationFrame(tick);
    };
    button.addEventListener("click", () => {
      if (running) running = false;
      else start();
      draw();
    });
    slider.max = last;
    slider.addEventListener("input", () => {
      [now, running] = [Number(slider.value), false];
      draw();
    });
    let dragged = null;
    find(".clouds").addEventListener("pointerdown", (event) => { dragged = event.clientX; });
    window.addEventListener("pointerup", () => { dragged = null; });
    window.addEventListener("pointercancel", () => { dragged = null; });
    window.addEventListener("pointermove", (event) => {
      if (dragged === null) return;
      turn -= (event.clientX - dragged) / 120;
      dragged = event.clientX;
      draw();
    });
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    for (const part of section.querySelectorAll(".player, .how")) part.hidden = false;
    draw();
    if (!still.matches) {
      // Plays once when it first comes into sight; never where the reader asked for less motion.
      const watcher = new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) {
          watcher.disconnect();
          start();
        }
      }, { threshold: 0.4 });
      watcher.observe(find(".clouds"));
    }
  };
  document.querySelectorAll("section.animation").forEach(play);
}
