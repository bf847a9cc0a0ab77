// Puts the page together in dist/: the bundle, and the fonts and icons that @grafana/ui asks for.

import { cp, mkdir, rm } from 'node:fs/promises';
import { build } from 'esbuild';

const MODULES = 'node_modules';
const ROBOTO = 'roboto/L0xTDF4xlVMF-BfR8bXMIhJHg45mwgGEFl0_3vrtSM1J-gEPT5Ese6hmHSh0mQ.woff2';
const FONTS = {
  'inter/Inter-Regular.woff2': '@fontsource/inter/files/inter-latin-400-normal.woff2',
  'inter/Inter-Medium.woff2': '@fontsource/inter/files/inter-latin-500-normal.woff2',
  'inter/Inter-Italic.woff2': '@fontsource/inter/files/inter-latin-400-italic.woff2',
  'inter/Inter-MediumItalic.woff2': '@fontsource/inter/files/inter-latin-500-italic.woff2',
  [ROBOTO]: '@fontsource/roboto-mono/files/roboto-mono-latin-400-normal.woff2',
};

await rm('dist', { recursive: true, force: true });
await mkdir('dist', { recursive: true });
await build({
  entryPoints: ['src/main.tsx'],
  outdir: 'dist',
  bundle: true,
  splitting: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  minify: true,
  define: { 'process.env.NODE_ENV': '"production"' },
  loader: { '.ttf': 'file', '.woff': 'file', '.woff2': 'file' },
  logLevel: 'warning',
});
await cp('index.html', 'dist/index.html');
await cp(`${MODULES}/@grafana/ui/dist/public/img`, 'dist/public/build/img', { recursive: true });
for (const [name, file] of Object.entries(FONTS)) {
  await cp(`${MODULES}/${file}`, `dist/public/fonts/${name}`);
}
