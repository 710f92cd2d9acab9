// The page that links this one opens at the token that was chosen here, or that this one was opened at.
const homeward = () => {
  if (!/^#token=\d+$/.test(location.hash)) return;
  for (const home of document.querySelectorAll("a.home")) home.hash = location.hash;
};
window.addEventListener("hashchange", homeward);
homeward();
