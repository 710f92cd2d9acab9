// Answers come from the server that the page came from.
const ask = async (what, question) => {
  const answer = await fetch(what, { method: "POST", body: JSON.stringify(question) }).catch(() => {
    throw new Error("The server does not answer; is `diffeqformer explore` still running?");
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
};
const backend = Object.fromEntries(about.answers.map((name) => [name, (question) => ask(name, question)]));
