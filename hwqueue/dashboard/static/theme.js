// Runs before the first paint, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("hwqueue-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  if (localStorage.getItem("hwqueue-times") === "utc") document.documentElement.dataset.times = "utc";
} catch { /* storage may be closed */ }
