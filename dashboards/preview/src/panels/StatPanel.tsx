import { getFieldDisplayValues } from '@grafana/data';
import { BigValue, BigValueGraphMode, useTheme2 } from '@grafana/ui';

import { TIME_ZONE } from '../fields';
import type { Drawing } from './drawing';

export function StatPanel({ panel, frames, timeRange, width, height }: Drawing) {
  const theme = useTheme2();
  const { options, fieldConfig } = panel;
  const values = getFieldDisplayValues({
    data: frames,
    fieldConfig,
    reduceOptions: options.reduceOptions,
    replaceVariables: (text) => text,
    sparkline: options.graphMode !== BigValueGraphMode.None,
    theme,
    timeZone: TIME_ZONE,
  });
  return (
    <div style={{ display: 'flex', gap: 8 }}>
      {values.map((value, index) => (
        <BigValue
          key={index}
          value={value.display}
          sparkline={value.sparkline && { ...value.sparkline, timeRange }}
          count={values.length}
          width={(width - 8 * (values.length - 1)) / values.length}
          height={height}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode}
          disableWideLayout={!options.wideLayout}
          theme={theme}
        />
      ))}
    </div>
  );
}
