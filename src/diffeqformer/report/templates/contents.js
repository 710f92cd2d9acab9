// The token that was chosen in one page is the one that the next opens at.
for (const link of document.querySelectorAll(".contents a")) link.hash = location.hash;
