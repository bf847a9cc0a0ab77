// What Grafana's own table panel draws with; it is not promised to stay, hence the pinned version.
import { TableNG } from '@grafana/ui/unstable';

import type { Drawing } from './drawing';

export function TablePanel({ panel, frames, timeRange, width, height }: Drawing) {
  return (
    <TableNG
      data={frames[0]}
      width={width}
      height={height}
      timeRange={timeRange}
      cellHeight={panel.options.cellHeight}
      sortBy={panel.options.sortBy}
      noHeader={!panel.options.showHeader}
      showTypeIcons={panel.options.showTypeIcons}
      fieldConfig={panel.fieldConfig}
      enableVirtualization={false}
    />
  );
}
