// What is shown is told by the address, and nothing else is kept.
const whole = (text, usual) => (/^\d{1,6}$/.test(text ?? "") ? Number(text) : usual);
const fromAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  const run = Math.min(whole(given.get("run"), 0), about.runs.length - 1);
  const own = about.runs[run];
  const other = whole(given.get("other"), -1);
  return {
    run,
    text: given.get("text") ?? about.text,
    steps: whole(given.get("steps"), own.steps),
    scheme: own.schemes.includes(given.get("scheme")) ? given.get("scheme") : own.scheme,
    rtol: own.tolerances.find((rtol) => String(rtol) === given.get("rtol")) ?? null,
    other: other < about.runs.length ? other : -1,
    otherSteps: whole(given.get("otherSteps"), own.steps),
    colour: ["p", "kl", "next"].find((name) => name === given.get("colour")) ?? "p",
    step: whole(given.get("step"), -1),
    position: whole(given.get("position") ?? given.get("token"), -1),  // `token`, as in the other pages of a run
    head: whole(given.get("head"), -1),
    overlay: about.methods.some(({ name }) => name === given.get("overlay")) ? given.get("overlay") : null,
    draft: whole(given.get("draft"), -1),
    exit: Number(given.get("exit")) > 0 ? Number(given.get("exit")) : null,
    time: given.has("time") && Number(given.get("time")) >= 0 && Number(given.get("time")) <= 1 ? Number(given.get("time")) : null,
  };
};
