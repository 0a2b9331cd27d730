"""Which calls does Spark make on `format("txlog")`?

Spark makes a data source from its options to learn the schema, to plan a read, and to begin a write. Each time it uses
a separate Python process beside the driver. It sends the instance that told the schema to the process that plans. So an
instance holds its options, and the topics that its schema came from: a frame keeps its columns if they are renamed. The
rooms `source` and `sink` do the work, and are imported where they are used, because the process that looks data sources
up needs neither txlog nor pyarrow.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_txlog.sink.batch_writer import TxlogWriter
    from pyspark_txlog.sink.stream_writer import TxlogStreamWriter
    from pyspark_txlog.source.batch_reader import TxlogReader
    from pyspark_txlog.source.metadata_tables import MetadataReader
    from pyspark_txlog.source.stream_reader import OlderStreamReader
    from txlog.engine.schemas import TopicMetadata


class TxlogDataSource(DataSource):
    """`format("txlog")`: a store's topics as DataFrames. `pyspark_txlog.option_table` has the options."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises InvalidRequestError if this Spark is too old. Every use of the data source begins here."""
        # Imported here because the process that looks data sources up makes no instance.
        from pyspark_txlog.spark_version import check_spark

        check_spark()
        super().__init__(options)
        self._made_here = True
        self._known: dict[str, TopicMetadata] = {}
        self._begun: dict[str, int] | None = None

    @classmethod
    def name(cls) -> str:
        return "txlog"

    def schema(self) -> StructType:
        """Return the columns of the requested topics, or those that the option `columns` names; or those of a metadata
        table."""
        from pyspark_txlog.metadata_schemas import TABLES
        from pyspark_txlog.options import refuse_catalog
        from pyspark_txlog.source import batch_reader, options

        refuse_catalog(self.options)
        if "metadata" in self.options:
            return TABLES[options.parse_metadata_options(self.options)[0]].schema
        schema, self._known = batch_reader.schema_and_topics(options.parse_schema_options(self.options))
        return schema

    def reader(self, schema: StructType) -> TxlogReader | MetadataReader:
        """Return a batch reader. `schema` is the user's if one was given, and selects columns."""
        from pyspark_txlog.source import batch_reader, options

        if "metadata" in self.options:
            from pyspark_txlog.source import metadata_tables

            return metadata_tables.MetadataReader.begin(self.options, schema)
        return batch_reader.TxlogReader(options.parse_read_options(self.options), schema, self._known)

    def writer(self, schema: StructType, overwrite: bool) -> TxlogWriter:
        """Begin a batch write: one staged transaction, which starts here, before any task runs."""
        from pyspark_txlog.sink import batch_writer

        return batch_writer.TxlogWriter.begin(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> OlderStreamReader:  # noqa: N802  Spark's name
        """Return a stream reader. `schema` is the user's if one was given, and selects columns. Its first call reports
        wrong options."""
        from pyspark_txlog.source import stream_reader

        return stream_reader.stream_reader(self.options, schema, self._known)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TxlogStreamWriter:  # noqa: N802  Spark's name
        """Return a streaming query's sink.

        Spark asks for one to begin each micro-batch, and again to commit or abort it.
        """
        from pyspark_txlog.sink.stream_writer import TxlogStreamWriter

        if self._made_here:
            return TxlogStreamWriter.begin(self.options, schema, overwrite=overwrite)
        return TxlogStreamWriter.settling(self.options, schema, self._begun)

    def __getstate__(self) -> dict[str, object]:
        # Spark does not tell why it wants a stream's writer. To begin a batch it makes a data source from the options
        # in the same process. To commit or abort a batch it sends the instance that it keeps for the query. So the kept
        # instance also knows with which columns the query began.
        begun = self._begun
        if self._made_here and any(name.lower() == "checkpointlocation" for name in self.options):
            from pyspark_txlog.sink.stream_writer import begun_columns

            # The query itself reports what is wrong. If only this look failed, names count from each topic's first
            # version.
            begun = {}
            with suppress(Exception):
                begun = begun_columns(self.options)
        return {**self.__dict__, "_made_here": False, "_begun": begun}
