// Frames as a panel sees them: transformed, with its field configuration applied.

import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  type DataFrame,
  FieldConfigOptionsRegistry,
  type FieldConfigPropertyItem,
  type GrafanaTheme2,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
  TransformerCategory,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

import type { Frame, Panel } from './contents';

export const TIME_ZONE = 'utc';

const asItIs = (text: string) => text;

// What a field of a panel can be told. Grafana registers the same names, with editors for them.
const STANDARD = [
  'unit', 'min', 'max', 'fieldMinMax', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links',
];
const CUSTOM = [
  'align', 'axisPlacement', 'axisSoftMax', 'cellOptions', 'drawStyle', 'fillOpacity', 'filterable', 'inspect',
  'lineStyle', 'lineWidth', 'scaleDistribution', 'showPoints', 'stacking', 'thresholdsStyle', 'width',
];

function item(path: string, isCustom: boolean): FieldConfigPropertyItem {
  return {
    id: isCustom ? `custom.${path}` : path,
    path,
    name: path,
    isCustom,
    editor: () => null,
    override: () => null,
    process: (value) => value,
    shouldApply: () => true,
  };
}

const fieldConfigRegistry = new FieldConfigOptionsRegistry(() => [
  ...STANDARD.map((path) => item(path, false)),
  ...CUSTOM.map((path) => item(path, true)),
]);

const TRANSFORMERS = [
  standardTransformers.mergeTransformer,
  standardTransformers.organizeFieldsTransformer,
  standardTransformers.convertFieldTypeTransformer,
];
standardTransformersRegistry.setInit(() =>
  TRANSFORMERS.map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation: async () => transformation,
    editor: () => null,
    imageDark: '',
    imageLight: '',
    categories: new Set([TransformerCategory.Reformat]),
  })),
);

/** A panel that uses what the page does not know is wrongly drawn: better not at all. */
function refuseUnknown(panel: Panel): void {
  const { defaults, overrides } = panel.fieldConfig;
  const named = [
    ...Object.keys(defaults).filter((key) => key !== 'custom'),
    ...Object.keys(defaults.custom ?? {}).map((key) => `custom.${key}`),
    ...overrides.flatMap((override) => override.properties.map((property) => property.id)),
  ];
  const unknown =
    named.find((id) => !fieldConfigRegistry.getIfExists(id)) ??
    panel.transformations?.find(({ id }) => !standardTransformersRegistry.getIfExists(id))?.id;
  if (unknown) {
    throw new Error(`the preview cannot draw with ${unknown}`);
  }
}

export async function prepare(panel: Panel, frames: Frame[], theme: GrafanaTheme2): Promise<DataFrame[]> {
  refuseUnknown(panel);
  const data = frames.map((frame) => toDataFrame(frame));
  const transformed = await lastValueFrom(
    transformDataFrame(panel.transformations ?? [], data, { interpolate: asItIs }),
  );
  const fields = applyFieldOverrides({
    data: transformed,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry,
    replaceVariables: asItIs,
    theme,
    timeZone: TIME_ZONE,
  });
  // A table's head looks for them there.
  cacheFieldDisplayNames(fields);
  return fields;
}
