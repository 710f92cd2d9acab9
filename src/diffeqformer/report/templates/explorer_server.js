// Answers come from the server that the page came from.
const ask = async (what, question) => {
  const answer = await fetch(what, { method: "POST", body: JSON.stringify(question) }).catch(() => {
    throw new Error("The server does not answer; is `diffeqformer explore` still running?");
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
};
const backend = { read: (question) => ask("read", question), cell: (question) => ask("cell", question) };
